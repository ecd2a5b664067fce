/* Learning-rate schedules: a linear warm-up from 0, then a decay to lr * min_lr_ratio at the last step.
 *   warm-up:  lr * s / warmup                       for s <= warmup
 *   linear:   lr * (1 - (1 - r) p)                  p = (s - warmup) / (steps - warmup)
 *   cosine:   lr * (r + (1 - r) (1 + cos(pi p))/2)  (Loshchilov & Hutter, SGDR)
 * with s and steps counted from schedule_from (a restart). Budgets fall linearly from the context N to their final
 * values between from_step and to_step. Drawn budgets are K (N/K)^u with u uniform in [0,1), one u per step for all
 * layers, so that 8 to 16 are as frequent as 256 to 512. L_mem's factor is 0 up to mem.from_step, then rises linearly
 * to 1. */
#include "train/schedule.h"

#include <math.h>

#include "base/rng.h"

static double scheduled(const wn_train_config *config, double lr, int64_t step) {
  const int64_t s = step > config->schedule_from ? step - config->schedule_from : 0;
  if (config->warmup > 0 && s <= config->warmup) return lr * (double)s / (double)config->warmup;
  if (config->schedule == WN_SCHED_CONSTANT) return lr;
  double span = (double)(config->steps - config->schedule_from - config->warmup);
  double p = span > 0 ? (double)(s - config->warmup) / span : 1;
  if (p > 1) p = 1;
  double r = config->min_lr_ratio;
  double shape = config->schedule == WN_SCHED_LINEAR ? 1 - p : 0.5 * (1 + cos(3.14159265358979323846 * p));
  return lr * (r + (1 - r) * shape);
}

double wn_schedule_lr(const wn_train_config *config, int64_t step) {
  return scheduled(config, config->lr, step);
}

double wn_schedule_muon_lr(const wn_train_config *config, int64_t step) {
  return scheduled(config, config->muon.lr, step);
}

int64_t wn_schedule_budget(const wn_train_config *config, int64_t context, int64_t budget, int64_t step) {
  const int64_t from = config->prune.from_step, to = config->prune.to_step;
  if (budget >= context || step <= from) return context;
  if (step >= to) return budget;
  const double p = (double)(step - from) / (double)(to - from);
  return context - (int64_t)floor(p * (double)(context - budget));
}

double wn_schedule_memory_loss(const wn_train_config *config, int64_t step) {
  const int64_t from = config->mem.from_step, to = config->mem.to_step;
  if (step <= from) return 0;
  return step >= to ? 1 : (double)(step - from) / (double)(to - from);
}

int64_t wn_schedule_budget_drawn(const wn_train_config *config, int64_t context, int64_t budget, int64_t step) {
  const int64_t least = wn_schedule_budget(config, context, budget, step);
  if (!config->prune.draw || least >= context) return least;
  const double u = wn_random_uniform(config->seed, WN_STREAM_BUDGET, (uint64_t)step, 0);
  const int64_t drawn = (int64_t)floor((double)least * pow((double)context / (double)least, u));
  return drawn < least ? least : drawn < context ? drawn : context;
}
