-- Tables of what was measured on a device. `<kind>_rows` hold the records of a kind of file.

-- Measurements with another `setup` come from another device or from other versions, and are never
-- drawn as one line with the rest.
CREATE TEMP MACRO setup_of(environment) AS
concat_ws(', ', environment ->> 'device', 'Python ' || (environment ->> 'python'), array_to_string(
    list_transform(
        json_keys(environment, '$.versions'),
        lambda package: package || ' ' || json_extract_string(environment, '$.versions."' || package || '"')
    ),
    ', '
));

-- One row per point of the speed study, ours and published.
CREATE TABLE measurements AS
-- driver_version: Version of the NVIDIA driver; null without one.
-- peak_flops: FLOP/s that the device can do at most, by its data sheet.
-- setup: Device and versions. Times of two setups are never compared.
-- source: measured, or published for runs and times of others.
-- unknown_fields: Fields that this version does not know.
SELECT
    'measured' AS source,
    * EXCLUDE (environment, format),
    (environment ->> 'peak_flops')::DOUBLE AS peak_flops,
    environment -> 'driver' ->> 'driver_version' AS driver_version,
    setup_of(environment) AS setup
FROM measurement_rows;

-- One row per run that has drawn images.
CREATE TABLE samples AS
-- unknown_fields: Fields that this version does not know.
FROM sample_rows;

-- One row per loss that a table of n-grams reaches on the validation text, or that is known.
CREATE TABLE floors AS
-- unknown_fields: Fields that this version does not know.
FROM floor_rows;

-- One row per quantity of a run that was predicted before it began.
CREATE TABLE forecasts AS
FROM sealed_rows;
