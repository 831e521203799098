-- One row per spike of the training loss; spikes.py defines and finds them.
CREATE TABLE spikes (
    -- height: Nats above the running median of the loss, or of its difference from other runs.
    -- recovery: Updates until the upset that this spike begins was over, infinite if it never was;
    --   null of later spikes of an upset.
    -- run: Cell name and hash.
    run VARCHAR, update BIGINT, train_loss DOUBLE, height DOUBLE, recovery DOUBLE
);

CREATE TEMP TABLE compared (run VARCHAR, compared_updates BIGINT, train_rise DOUBLE);
