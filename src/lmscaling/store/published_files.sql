-- The files of results/published/, one table each. A file must have these columns.
CREATE TEMP TABLE published_step_time (
    params_millions BIGINT NOT NULL, implementation VARCHAR NOT NULL, context BIGINT NOT NULL,
    milliseconds DOUBLE NOT NULL CHECK (milliseconds > 0 AND isfinite(milliseconds))
);

CREATE TEMP TABLE published_decode_time (
    params_millions BIGINT NOT NULL, implementation VARCHAR NOT NULL, context BIGINT NOT NULL,
    milliseconds_per_token DOUBLE NOT NULL
        CHECK (milliseconds_per_token > 0 AND isfinite(milliseconds_per_token))
);

CREATE TEMP TABLE published_final_loss (
    params_millions BIGINT NOT NULL, attention VARCHAR NOT NULL, context BIGINT NOT NULL,
    final_train_loss DOUBLE NOT NULL CHECK (final_train_loss > 0 AND isfinite(final_train_loss))
);

-- An empty loss means that there is no number.
CREATE TEMP TABLE published_curves (
    params_millions BIGINT NOT NULL, attention VARCHAR NOT NULL, context BIGINT NOT NULL,
    "update" DOUBLE NOT NULL CHECK ("update" > 0 AND isfinite("update")),
    hours DOUBLE NOT NULL CHECK (hours > 0 AND isfinite(hours)),
    train_loss DOUBLE CHECK (train_loss > 0 AND isfinite(train_loss))
);

-- An empty highest spike means that there is none.
CREATE TEMP TABLE published_runs (
    params_millions BIGINT NOT NULL, attention VARCHAR NOT NULL, context BIGINT NOT NULL,
    last_update DOUBLE NOT NULL CHECK (last_update > 0 AND isfinite(last_update)),
    hours DOUBLE NOT NULL CHECK (hours > 0 AND isfinite(hours)),
    points BIGINT NOT NULL CHECK (points >= 0),
    points_without_loss BIGINT NOT NULL CHECK (points_without_loss >= 0),
    spikes BIGINT NOT NULL CHECK (spikes >= 0),
    highest_spike DOUBLE CHECK (highest_spike > 0 AND isfinite(highest_spike))
);
