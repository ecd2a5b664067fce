/* Optimizers against closed forms: with a constant gradient g, AdamW's bias-corrected moments are g and g^2 at every
 * step, and Adagrad's sum after k steps is k g^2. Clipping against norms computed by hand. */
#include "tiny.h"

#include <math.h>

#include "train/optimizer.h"

enum { FIRST = 3, SECOND = 4, OFFSET = 16, TOTAL = 32 };

/* Two tensors with padding between them: "a" [3] has no weight decay, "b" [2,2] does. */
struct bench {
  wn_context *ctx;
  struct wn_param rows[2];
  struct wn_model model;
  double p[TOTAL], g[TOTAL];
  float p32[TOTAL], g32[TOTAL];
  struct wn_optimizer opt;
};

/* All tensors of the model learn; gradients are laid out as the parameters. */
static wn_status init_all(wn_context *ctx, struct wn_model *model, wn_optimizer_kind kind, struct wn_optimizer *opt) {
  struct wn_optimizer_row *rows = calloc((size_t)model->table.count, sizeof *rows);
  assert_non_null(rows);
  for (int i = 0; i < model->table.count; i++) rows[i] = wn_optimizer_row_of(model, i);
  memset(opt, 0, sizeof *opt);
  const wn_status status = wn_optimizer_init(ctx, model, kind, rows, model->table.count, NULL, opt);
  free(rows);
  return status;
}

static void bench_init(struct bench *b, wn_optimizer_kind kind, bool wide) {
  memset(b, 0, sizeof *b);
  b->ctx = tiny_context("ref", 1);
  b->rows[0] = (struct wn_param){.name = "a", .ndim = 1, .shape = {FIRST}, .offset = 0, .count = FIRST};
  b->rows[1] =
      (struct wn_param){.name = "b", .ndim = 2, .shape = {2, 2}, .offset = OFFSET, .count = SECOND, .decay = true};
  const double p[] = {1, -2, 0.5, 3, -1, 0.25, 2}, g[] = {0.1, -0.2, 0.2, 0.4, -0.4, 0.2, 0.8};
  for (int i = 0; i < FIRST + SECOND; i++) {
    int at = i < FIRST ? i : OFFSET + i - FIRST;
    b->p[at] = p[i], b->g[at] = g[i], b->p32[at] = (float)p[i], b->g32[at] = (float)g[i];
  }
  b->model = (struct wn_model){.ctx = b->ctx,
                               .dtype = wide ? WN_F64 : WN_F32,
                               .table = {.rows = b->rows, .count = 2, .total = TOTAL},
                               .params = wide ? (void *)b->p : (void *)b->p32};
  must(b->ctx, wn_backend_of(b->ctx, &b->model.backend));
  must(b->ctx, init_all(b->ctx, &b->model, kind, &b->opt));
}

static void bench_clear(struct bench *b) {
  wn_optimizer_clear(&b->opt);
  wn_context_destroy(b->ctx);
}

static const void *grads(const struct bench *b) {
  return b->model.dtype == WN_F64 ? (const void *)b->g : (const void *)b->g32;
}

static double param(const struct bench *b, int i) {
  return b->model.dtype == WN_F64 ? b->p[i] : (double)b->p32[i];
}

static void expect(const struct bench *b, int i, double expected) {
  double tolerance = b->model.dtype == WN_F64 ? 1e-12 : 2e-6;
  if (!(fabs(param(b, i) - expected) <= tolerance * (1 + fabs(expected))))
    fail_msg("parameter %d is %.17g, expected %.17g", i, param(b, i), expected);
}

static void steps(struct bench *b, const wn_train_config *c, double lr, int count) {
  double norm;
  for (int s = 1; s <= count; s++) {
    must(b->ctx, wn_optimizer_measure(&b->opt, grads(b), &norm));
    must(b->ctx, wn_optimizer_apply(&b->opt, c, grads(b), lr, lr, s));
  }
}

static void test_adamw(void **state) {
  (void)state;
  for (int wide = 0; wide < 2; wide++) {
    struct bench b;
    bench_init(&b, WN_OPT_ADAMW, wide);
    wn_train_config c = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1};
    const double lr = 0.01;
    double before[TOTAL];
    for (int i = 0; i < TOTAL; i++) before[i] = param(&b, i);
    steps(&b, &c, lr, 5);
    for (int i = 0; i < TOTAL; i++) {
      bool row = i < FIRST || (i >= OFFSET && i < OFFSET + SECOND);
      double move = row ? lr * b.g[i] / (fabs(b.g[i]) + c.eps) : 0, want = before[i];
      for (int s = 0; s < 5; s++) want = want * (i >= OFFSET ? 1 - lr * c.weight_decay : 1) - move;
      expect(&b, i, want); /* also padding, which stays zero */
    }
    bench_clear(&b);
  }
}

static void test_adagrad(void **state) {
  (void)state;
  for (int wide = 0; wide < 2; wide++) {
    struct bench b;
    bench_init(&b, WN_OPT_ADAGRAD, wide);
    wn_train_config c = {.eps = 0};
    double before[TOTAL], sum = 1 + 1 / sqrt(2) + 1 / sqrt(3);
    for (int i = 0; i < TOTAL; i++) before[i] = param(&b, i);
    steps(&b, &c, 0.07, 3); /* |g| / sqrt(k g^2) = 1/sqrt(k) */
    for (int i = 0; i < FIRST; i++) expect(&b, i, before[i] - 0.07 * sum * (b.g[i] > 0 ? 1 : -1));
    for (int i = OFFSET; i < OFFSET + SECOND; i++) expect(&b, i, before[i] - 0.07 * sum * (b.g[i] > 0 ? 1 : -1));
    assert_null(b.opt.m);
    bench_clear(&b);
  }
}

/* Norms: 0.3 for a, 1 for b. With eps far above |g|, AdamW's first step is lr * scale * g / eps, which shows the scale.
 */
static void test_clipping(void **state) {
  (void)state;
  const struct {
    double clip, clip_tensor, scale_a, scale_b;
  } cases[] = {
      {0, 0, 1, 1},
      {2, 2, 1, 1},                     /* nothing to clip */
      {0.522015325445528, 0, 0.5, 0.5}, /* half of sqrt(0.09 + 1) */
      {0, 0.5, 1, 0.5},                 /* each by its own norm */
      {0, 0.03, 0.1, 0.03},
      {0.2915475947422651, 0.5, 0.5, 0.25}, /* first by tensor, then sqrt(0.09 + 0.25) is halved */
  };
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    struct bench b;
    bench_init(&b, WN_OPT_ADAMW, true);
    wn_train_config c = {
        .beta1 = 0.9, .beta2 = 0.99, .eps = 1e9, .clip = cases[k].clip, .clip_tensor = cases[k].clip_tensor};
    double before[TOTAL];
    memcpy(before, b.p, sizeof before);
    double norm;
    must(b.ctx, wn_optimizer_measure(&b.opt, b.g, &norm));
    assert_true(fabs(norm - sqrt(1.09)) < 1e-12);
    assert_true(fabs(b.opt.norms[0] - 0.3) < 1e-12 && fabs(b.opt.norms[3] - 1) < 1e-12);
    must(b.ctx, wn_optimizer_apply(&b.opt, &c, b.g, 1e9, 1e9, 1));
    for (int i = 0; i < TOTAL; i++) {
      double want = before[i] - (i < OFFSET ? cases[k].scale_a : cases[k].scale_b) * b.g[i];
      if (!(fabs(b.p[i] - want) < 1e-8))
        fail_msg("case %zu: parameter %d is %.12g, expected %.12g", k, i, b.p[i], want);
    }
    bench_clear(&b);
  }
}

/* Modules that share a tensor are clipped by their own norms, as if they were three tensors. */
static void test_clipping_of_modules(void **state) {
  (void)state;
  const double g[] = {0.3, -0.4, 0.02, 0, 0.6, 0.8}; /* norms 0.5, 0.02, 1 */
  const double scale[] = {0.2, 0.2, 1, 1, 0.1, 0.1};
  for (int kind = WN_OPT_ADAMW; kind <= WN_OPT_ADAGRAD; kind++) {
    struct wn_param row = {.name = "qkv", .ndim = 2, .shape = {6, 1}, .count = 6, .module = {2, 2, 2}};
    double p[16] = {0}, norm;
    struct wn_model model = {
        .ctx = tiny_context("ref", 1), .dtype = WN_F64, .table = {.rows = &row, .count = 1, .total = 16}, .params = p};
    must(model.ctx, wn_backend_of(model.ctx, &model.backend));
    struct wn_optimizer opt;
    must(model.ctx, init_all(model.ctx, &model, (wn_optimizer_kind)kind, &opt));
    const wn_train_config c = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e9, .clip_tensor = 0.1};
    must(model.ctx, wn_optimizer_measure(&opt, g, &norm));
    assert_true(fabs(norm - sqrt(0.25 + 0.0004 + 1)) < 1e-12);
    must(model.ctx, wn_optimizer_apply(&opt, &c, g, 1e9, 1e9, 1));
    for (int i = 0; i < 6; i++)
      if (!(fabs(p[i] + scale[i] * g[i]) < 1e-8))
        fail_msg("optimizer %d: parameter %d is %.12g, expected %.12g", kind, i, p[i], -scale[i] * g[i]);
    wn_optimizer_clear(&opt);
    wn_context_destroy(model.ctx);
  }
}

/* Adagrad clips the step but not its sum, so modules with larger gradients move less: with norms 0.3 and 1, clipping at
 * 0.03 leaves a tenth and 3% of a step. Weight decay is not clipped. */
static void test_clipped_adagrad(void **state) {
  (void)state;
  struct bench b;
  bench_init(&b, WN_OPT_ADAGRAD, true);
  const wn_train_config c = {.eps = 0, .clip_tensor = 0.03, .weight_decay = 0.5};
  double before[TOTAL];
  memcpy(before, b.p, sizeof before);
  steps(&b, &c, 0.07, 2);
  for (int i = 0; i < OFFSET + SECOND; i++) {
    if (i >= FIRST && i < OFFSET) continue;
    const bool decays = i >= OFFSET;
    double want = before[i];
    for (int s = 1; s <= 2; s++)
      want = want * (decays ? 1 - 0.07 * c.weight_decay : 1) -
             0.07 * (decays ? 0.03 : 0.1) / sqrt(s) * (b.g[i] > 0 ? 1 : -1);
    if (!(fabs(b.p[i] - want) < 1e-12)) fail_msg("parameter %d is %.12g, expected %.12g", i, b.p[i], want);
  }
  bench_clear(&b);
}

/* A parameter that is a ratio stays in [0,1] and has no weight decay, whatever its number of dimensions. Others are not
 * bounded. */
static void test_ratios(void **state) {
  (void)state;
  for (int kind = WN_OPT_ADAMW; kind <= WN_OPT_ADAGRAD; kind++) {
    for (int wide = 0; wide < 2; wide++) {
      struct bench b;
      bench_init(&b, (wn_optimizer_kind)kind, wide != 0);
      b.opt.rows[1].range = WN_RANGE_RATIO;
      const wn_train_config c = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-15, .weight_decay = 100};
      steps(&b, &c, 0.01, 1); /* without decay 3, -1, 0.25, 2 become 2.99, -0.99, 0.24, 1.99 */
      expect(&b, OFFSET, 1);
      expect(&b, OFFSET + 1, 0);
      expect(&b, OFFSET + 2, 0.24);
      expect(&b, OFFSET + 3, 1);
      expect(&b, 1, -1.99);
      bench_clear(&b);
    }
  }
}

/* The tensors that Muon updates, and its state for them: the layers' projections have no second moment. A model in
 * which nothing is trainable is refused. */
static void test_muon_rows(void **state) {
  (void)state;
  wn_context *ctx = tiny_context("cpu", 1);
  wn_recipe r;
  wn_model *model;
  tiny_recipe(&r, true);
  r.model.attention.selective.bilinear = true;
  r.model.vocab_size = 20, r.model.context = 16;
  must(ctx, wn_model_create(ctx, &r.model, 1, &model));
  struct wn_optimizer opt;
  must(ctx, init_all(ctx, model, WN_OPT_MUON, &opt));
  size_t without = 0;
  for (int i = 0; i < opt.count; i++) {
    const char *name = opt.rows[i].name;
    const bool hidden = strstr(name, ".qkv.weight") || strstr(name, "attn.out.weight") ||
                        strstr(name, "ffn.in.weight") || strstr(name, "ffn.out.weight") || strstr(name, "attn.select_");
    if (opt.rows[i].matrix != hidden) fail_msg("%s is %s matrix", name, hidden ? "no" : "a");
    assert_true(wn_optimizer_has_moment(&opt, i, 0));
    assert_true(wn_optimizer_has_moment(&opt, i, 1) != hidden);
    if (hidden) without += (opt.rows[i].count + 15) & ~(size_t)15;
  }
  assert_true(without > 0 && opt.total_v == opt.total - without);
  wn_optimizer_clear(&opt);
  must(ctx, init_all(ctx, model, WN_OPT_ADAMW, &opt));
  for (int i = 0; i < opt.count; i++) assert_false(opt.rows[i].matrix);
  assert_true(opt.total_v == opt.total && opt.muon.most == 0);
  wn_optimizer_clear(&opt);

  wn_trainer *trainer = NULL;
  wn_train_config c = r.train;
  c.optimizer = WN_OPT_MUON;
  snprintf(c.freeze, sizeof c.freeze, "layers.*");
  assert_int_equal(wn_trainer_create(ctx, model, &c, &trainer), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "none is left to learn"));
  c.freeze[0] = 0;
  c.muon.momentum = 1;
  assert_int_equal(wn_trainer_create(ctx, model, &c, &trainer), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(ctx), "train.muon"));
  assert_null(trainer);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

/* With a gradient of zeros a matrix changes by its weight decay alone. */
static void test_muon_without_gradient(void **state) {
  (void)state;
  struct wn_param row = {.name = "w", .ndim = 2, .shape = {3, 2}, .count = 6, .decay = true, .matrix = true};
  float p[16] = {1, 2, 3, -4, 5, 6}, g[16] = {0};
  double norm;
  struct wn_model model = {
      .ctx = tiny_context("cpu", 1), .dtype = WN_F32, .table = {.rows = &row, .count = 1, .total = 16}, .params = p};
  must(model.ctx, wn_backend_of(model.ctx, &model.backend));
  struct wn_optimizer opt;
  must(model.ctx, init_all(model.ctx, &model, WN_OPT_MUON, &opt));
  const wn_train_config c = {
      .lr = 0.1, .weight_decay = 0.5, .muon = {.lr = 0.2, .momentum = 0.9, .nesterov = true, .steps = 5}};
  must(model.ctx, wn_optimizer_measure(&opt, g, &norm));
  must(model.ctx, wn_optimizer_apply(&opt, &c, g, 0, 0.1, 1)); /* the other learning rate does not matter */
  const float want[] = {1, 2, 3, -4, 5, 6};
  for (int i = 0; i < 6; i++) assert_true(fabs((double)p[i] - 0.95 * (double)want[i]) < 1e-6);
  wn_optimizer_clear(&opt);
  wn_context_destroy(model.ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_ratios),
                                     cmocka_unit_test(test_adamw),
                                     cmocka_unit_test(test_adagrad),
                                     cmocka_unit_test(test_clipping),
                                     cmocka_unit_test(test_clipping_of_modules),
                                     cmocka_unit_test(test_clipped_adagrad),
                                     cmocka_unit_test(test_muon_rows),
                                     cmocka_unit_test(test_muon_without_gradient)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
