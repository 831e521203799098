-- One row per spike of the training loss; spikes.py defines and finds them.
CREATE TABLE spikes (
    run VARCHAR, update BIGINT, train_loss DOUBLE, height DOUBLE, recovery DOUBLE
);

CREATE TEMP TABLE compared (run VARCHAR, compared_updates BIGINT, train_rise DOUBLE);
