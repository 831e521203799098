-- Views of the norms that runs have logged.

-- One row per surviving update of the study's cells whose gradient was measured at two batch sizes, of
-- `small_tokens` and of `update_tokens`. `signal` and `noise` are estimates without bias from these two
-- norms alone (McCandlish et al. 2018, arXiv:1812.06162, appendix A.1). The noise scale is the ratio of
-- their averages: the average of ratios is biased.
CREATE VIEW gradient_noise AS
-- noise: Estimate of the trace of the covariance of the gradient, times tokens, of this update
--   alone.
-- signal: Estimate of the squared norm of the true gradient, of this update alone: it may be
--   negative.
-- update: The update, from 1, that this gradient has changed the weights at.
SELECT
    run, s.name, s.attention, s.size, s.context, s.seed, s.lr_scale, s.lr, s.params, s.status,
    s.update_tokens, g.small_tokens, g.update, g.tokens,
    (s.update_tokens * u.grad_norm ** 2 - g.small_tokens * g.small_grad_norm ** 2)
        / (s.update_tokens - g.small_tokens) AS signal,
    (g.small_grad_norm ** 2 - u.grad_norm ** 2) / (1 / g.small_tokens - 1 / s.update_tokens) AS noise
FROM gradients g
JOIN updates u USING (run, attempt, update)
JOIN status s USING (run)
WHERE g.surviving AND g.small_grad_norm IS NOT NULL AND u.grad_norm IS NOT NULL
    AND g.small_tokens < s.update_tokens;
