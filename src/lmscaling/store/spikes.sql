-- One row per spike of the training loss; spikes.py defines and finds them.
CREATE TABLE spikes (
    run VARCHAR, update BIGINT, train_loss DOUBLE, height DOUBLE, recovery DOUBLE
);

COMMENT ON COLUMN spikes.height IS
'Nats above the running median of the loss, or of its difference from those of other runs.';
COMMENT ON COLUMN spikes.recovery IS
'Updates until the upset that this spike begins was over, infinite if it never was; null of later spikes of an upset.';

CREATE TEMP TABLE compared (run VARCHAR, compared_updates BIGINT);
