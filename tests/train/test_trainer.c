/* Single steps: the loss falls with standard and selective attention; micro-steps change nothing but rounding; a step
 * allocates nothing; padding is not counted; a NaN loss stops training. */
#include "bench.h"
#include "reach.h"

/* The same few batches again and again, which any working model learns by heart. */
static void loss_falls(bool selective, const char *backend, wn_optimizer_kind optimizer) {
  wn_recipe r;
  struct bench b;
  tiny_recipe(&r, selective);
  r.train.optimizer = optimizer;
  if (optimizer == WN_OPT_ADAGRAD) r.train.lr = 0.05;
  bench_init(&b, &r, backend, 1);
  wn_train_progress p = {0};
  double first = 0, last = 0;
  for (uint64_t s = 0; s < 60; s++) {
    must(b.ctx, bench_step(&b, s % 2, &p));
    if (s < 2) first += p.loss / 2;
    if (s >= 58) last += p.loss / 2;
  }
  assert_int_equal(p.step, 60);
  assert_true(p.tokens > 0 && p.tokens <= 60 * (uint64_t)(b.rows * b.T)); /* without padding */
  if (!(first > 1 && last < 0.6 * first)) fail_msg("loss %g at first, %g at last", first, last);
  bench_clear(&b);
}

static void test_loss_falls(void **state) {
  (void)state;
  loss_falls(false, "cpu", WN_OPT_ADAMW);
  loss_falls(true, "cpu", WN_OPT_ADAMW);
  loss_falls(true, "ref", WN_OPT_ADAMW);
  loss_falls(true, "cpu", WN_OPT_ADAGRAD);
}

/* A trainer keeps its model as a session does. */
static void test_model_destroyed_first(void **state) {
  (void)state;
  wn_recipe r;
  struct bench b;
  wn_train_progress p;
  tiny_recipe(&r, true);
  bench_init(&b, &r, "cpu", 1);
  wn_model_destroy(b.model);
  b.model = NULL;
  must(b.ctx, bench_step(&b, 0, &p));
  assert_int_equal(p.step, 1);
  bench_clear(&b);
}

/* Up to mem.from_step a model with L_mem learns the same bits as one without. After it, L_mem has an effect. */
static void test_memory_loss_later(void **state) {
  (void)state;
  wn_recipe r;
  struct bench with, without;
  tiny_recipe(&r, true);
  bench_init(&without, &r, "cpu", 1);
  r.model.attention.selective.mem.enabled = true;
  r.train.mem.from_step = 2, r.train.mem.to_step = 4;
  bench_init(&with, &r, "cpu", 1);
  for (uint64_t s = 0; s < 5; s++) {
    wn_train_progress a, b;
    must(with.ctx, bench_step(&with, s, &a));
    must(without.ctx, bench_step(&without, s, &b));
    assert_true(s < 2 ? a.mem_loss == 0 && a.grad_norm == b.grad_norm : a.mem_loss > 0 && a.grad_norm != b.grad_norm);
    assert_true(s < 3 ? a.loss == b.loss : a.loss != b.loss); /* step 3 is the first with L_mem */
    if (s == 2) assert_true(a.mem_loss < 0.6 * r.model.attention.selective.mem.eps); /* half of eps, M / n at most 1 */
  }
  bench_clear(&with), bench_clear(&without);
}

/* Compares gradients, not parameters: AdamW turns rounding in a tiny gradient into a full step. */
static void test_accumulation(void **state) {
  (void)state;
  wn_recipe r;
  struct bench whole, split;
  tiny_recipe(&r, true);
  r.model.attention.selective.mem.enabled = true;
  r.train.batch = 6;
  bench_init(&whole, &r, "cpu", 1);
  r.train.batch = 2;
  r.train.accumulate = 3;
  bench_init(&split, &r, "cpu", 1);
  wn_train_progress a, b;
  must(whole.ctx, bench_step(&whole, 0, &a));
  must(split.ctx, bench_step(&split, 0, &b));
  assert_true(fabs(a.loss - b.loss) < 1e-5 && fabs(a.mem_loss - b.mem_loss) < 1e-6 && a.mem_loss > 0);
  assert_true(fabs(a.grad_norm - b.grad_norm) < 1e-4 * a.grad_norm);
  for (int i = 0; i < wn_model_tensor_count(whole.model); i++) {
    wn_safetensors_entry x, y;
    must(whole.ctx, wn_trainer_gradient_at(whole.trainer, i, &x));
    must(split.ctx, wn_trainer_gradient_at(split.trainer, i, &y));
    assert_string_equal(x.name, y.name);
    const float *gx = x.data, *gy = y.data;
    double most = 0, error = 0;
    for (size_t k = 0; k < x.bytes / sizeof(float); k++) {
      most = fmax(most, fabs((double)gx[k]));
      error = fmax(error, fabs((double)gx[k] - (double)gy[k]));
    }
    if (!(most > 0 && error <= 2e-5 * most + 1e-8)) fail_msg("%s: error %g of %g", x.name, error, most);
  }
  bench_clear(&whole);
  bench_clear(&split);
}

/* Each micro-step has its own dropout masks: the same as if it were a step. */
static void test_masks_of_micro_steps(void **state) {
  (void)state;
  enum { ALONE = 6 };
  double losses[ALONE];
  for (int accumulate = 1; accumulate <= 3; accumulate++) {
    wn_recipe r;
    struct bench b;
    wn_train_progress p = {0};
    tiny_recipe(&r, false);
    r.train.accumulate = accumulate;
    r.train.lr = 0; /* parameters do not change */
    r.model.dropout = 0.3;
    bench_init(&b, &r, "cpu", 1);
    const size_t micro = (size_t)(r.train.batch * b.T);
    for (int s = 0; s < ALONE / accumulate; s++) {
      must(b.ctx, wn_data_source_batch(b.ctx, b.source, 1, 0, r.train.batch, b.tokens, b.targets, NULL));
      for (int a = 1; a < accumulate; a++) { /* the same sequences again */
        memcpy(b.tokens + (size_t)a * micro, b.tokens, micro * sizeof *b.tokens);
        memcpy(b.targets + (size_t)a * micro, b.targets, micro * sizeof *b.targets);
      }
      must(b.ctx, wn_trainer_step(b.ctx, b.trainer, b.tokens, b.targets, NULL, &p));
      double mean = 0;
      if (accumulate == 1) losses[s] = p.loss;
      for (int a = 0; a < accumulate; a++) mean += losses[s * accumulate + a] / accumulate;
      if (!(fabs(p.loss - mean) < 1e-6))
        fail_msg("%d micro-steps, step %d: loss %g, expected %g", accumulate, s, p.loss, mean);
    }
    if (accumulate == 1)
      for (int s = 1; s < ALONE; s++) assert_true(fabs(losses[s] - losses[s - 1]) > 1e-4);
    bench_clear(&b);
  }
}

static void test_no_allocation(void **state) {
  (void)state;
  wn_recipe r;
  struct bench b;
  tiny_recipe(&r, true);
  bench_init(&b, &r, "cpu", 1);
  must(b.ctx, bench_step(&b, 0, NULL));
  wn_memory_info before, after;
  wn_memory_info_get(&before);
  for (uint64_t s = 1; s < 4; s++) must(b.ctx, bench_step(&b, s, NULL));
  wn_memory_info_get(&after);
  assert_int_equal(after.total_allocations, before.total_allocations);
  bench_clear(&b);
}

/* Tokens and their rate are those of rows up to their last target: what follows is padding. */
static void test_padding_not_counted(void **state) {
  (void)state;
  wn_recipe r;
  struct bench b;
  tiny_recipe(&r, true);
  bench_init(&b, &r, "cpu", 1);
  wn_train_progress p;
  must(b.ctx, bench_step(&b, 0, &p));
  const uint64_t whole = p.tokens;
  int64_t kept = 0;
  for (int64_t row = 0; row < b.rows; row++) {
    const int64_t count = 1 + row % b.T;
    for (int64_t t = 0; t < b.T; t++) b.targets[row * b.T + t] = t == count - 1 ? 1 : -1; /* earlier ones are prompts */
    kept += count;
  }
  must(b.ctx, wn_trainer_step(b.ctx, b.trainer, b.tokens, b.targets, NULL, &p));
  assert_int_equal(p.tokens, whole + (uint64_t)kept);
  assert_true(p.seconds <= 0 || fabs(p.tokens_per_second * p.seconds / (double)kept - 1) < 1e-9);
  bench_clear(&b);
}

static void test_not_a_number(void **state) {
  (void)state;
  wn_recipe r;
  struct bench b;
  tiny_recipe(&r, false);
  bench_init(&b, &r, "cpu", 1);
  must(b.ctx, bench_step(&b, 0, NULL));
  float *p = (float *)reach(b.model->params) + b.model->table.rows[0].offset;
  for (size_t k = 0; k < b.model->table.rows[0].count; k++) p[k] = NAN;
  assert_int_equal(bench_step(&b, 1, NULL), WN_ERR_DIVERGED);
  assert_non_null(strstr(wn_context_error(b.ctx), "step 2"));
  bench_clear(&b);
}

static void test_bad_arguments(void **state) {
  (void)state;
  wn_recipe r;
  struct bench b;
  tiny_recipe(&r, false);
  bench_init(&b, &r, "cpu", 1);
  wn_train_config c = b.recipe.train;
  wn_trainer *t = NULL;
  c.batch = 0;
  assert_int_equal(wn_trainer_create(b.ctx, b.model, &c, &t), WN_ERR_CONFIG);
  c.batch = 1, c.context = b.T + 1;
  assert_int_equal(wn_trainer_create(b.ctx, b.model, &c, &t), WN_ERR_CONFIG);
  c.context = 0, c.lr = NAN;
  assert_int_equal(wn_trainer_create(b.ctx, b.model, &c, &t), WN_ERR_CONFIG);
  static const struct {
    const char *key;
    size_t at;
  } names[] = {{"train.optimizer", offsetof(wn_train_config, optimizer)},
               {"train.schedule", offsetof(wn_train_config, schedule)},
               {"train.tune", offsetof(wn_train_config, tune)},
               {"train.prune.policy", offsetof(wn_train_config, prune.policy)}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    for (int value = -1; value < 78; value += 78) { /* numbers outside the enum */
      c = b.recipe.train;
      memcpy((char *)&c + names[i].at, &value, sizeof value);
      assert_int_equal(wn_trainer_create(b.ctx, b.model, &c, &t), WN_ERR_CONFIG);
      if (!strstr(wn_context_error(b.ctx), names[i].key)) fail_msg("%s: %s", names[i].key, wn_context_error(b.ctx));
    }
  assert_null(t);
  for (int64_t i = 0; i < b.rows * b.T; i++) b.targets[i] = -1;
  assert_int_equal(wn_trainer_step(b.ctx, b.trainer, b.tokens, b.targets, NULL, NULL), WN_ERR_ARGUMENT);
  wn_safetensors_entry e;
  assert_int_equal(wn_trainer_gradient_at(b.trainer, wn_model_tensor_count(b.model), &e), WN_ERR_ARGUMENT);
  bench_clear(&b);
}

/* The span loss, by hand from z and its coefficient. A large coefficient alone shortens the spans. */
static void test_span_loss(void **state) {
  (void)state;
  for (int dynamic = 0; dynamic < 2; dynamic++) {
    wn_recipe r;
    struct bench b;
    tiny_recipe(&r, false);
    wn_span_config *span = &r.model.attention.span;
    span->enabled = true;
    span->dynamic = dynamic != 0;
    span->limit = 16, span->ramp = 4, span->init = 0.5, span->loss = 0.05;
    bench_init(&b, &r, "ref", 1);
    wn_train_progress first, last = {0};
    must(b.ctx, bench_step(&b, 0, &first));
    if (dynamic)
      assert_true(first.span_loss > 0 && first.span_loss < 0.1 * (double)r.model.layers * 0.05 * 16);
    else
      assert_true(fabs(first.span_loss - (double)r.model.layers * 0.05 * 16 * 0.5) < 1e-6);
    for (uint64_t s = 1; s < 40; s++) must(b.ctx, bench_step(&b, s % 2, &last));
    if (!(last.span_loss < first.span_loss && last.span_loss >= 0))
      fail_msg("span loss %g at first, %g at last", first.span_loss, last.span_loss);
    bench_clear(&b);
  }
}

/* Dynamic spans are averaged over a step's tokens, however its sequences are divided. */
static void test_span_loss_split(void **state) {
  (void)state;
  wn_train_progress whole, split;
  for (int64_t batch = 4; batch >= 1; batch /= 2) {
    wn_recipe r;
    struct bench b;
    tiny_recipe(&r, false);
    r.model.attention.span =
        (wn_span_config){.enabled = true, .dynamic = true, .limit = 16, .ramp = 4, .init = 0.5, .loss = 0.05};
    r.model.init_std = 0.3;
    r.train.batch = batch, r.train.accumulate = 4 / batch;
    bench_init(&b, &r, "cpu", 1);
    must(b.ctx, bench_step(&b, 0, batch == 4 ? &whole : &split));
    if (batch < 4 && !(fabs(split.span_loss - whole.span_loss) < 1e-6 && fabs(split.span - whole.span) < 1e-5 &&
                       fabs(split.grad_norm - whole.grad_norm) < 1e-4 * whole.grad_norm))
      fail_msg("micro-steps of %d: span loss %g, span %g, gradient %g; whole %g, %g, %g", (int)batch, split.span_loss,
               split.span, split.grad_norm, whole.span_loss, whole.span, whole.grad_norm);
    bench_clear(&b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_span_loss),
                                     cmocka_unit_test(test_span_loss_split),
                                     cmocka_unit_test(test_loss_falls),
                                     cmocka_unit_test(test_memory_loss_later),
                                     cmocka_unit_test(test_accumulation),
                                     cmocka_unit_test(test_masks_of_micro_steps),
                                     cmocka_unit_test(test_no_allocation),
                                     cmocka_unit_test(test_padding_not_counted),
                                     cmocka_unit_test(test_not_a_number),
                                     cmocka_unit_test(test_bad_arguments),
                                     cmocka_unit_test(test_model_destroyed_first)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
