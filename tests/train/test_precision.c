/* train.precision bfloat16: training works; gradients are as close to float32 as those of the reference in the same
 * precision; recomputation and resuming give the same bits; unsupported cases are refused. */
#include "bench.h"
#include "isa.h"

static void must_step(struct bench *b, uint64_t step, wn_train_progress *p) {
  must(b->ctx, bench_step(b, step, p));
}

/* Models that differ in what their parts read and in which arrays they have. */
static const char *const shapes[] = {
    "selective", "standard", "post norm, gelu, bias", "both norms, rope, grouped", "dropout, relu squared", "budgets"};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static void shape(wn_recipe *r, int which) {
  tiny_recipe(r, which == 0 || which == 5);
  r->train.precision = WN_BF16;
  if (which == 0) r->model.attention.selective.mem.enabled = true;
  if (which == 2) {
    r->model.norm_place = WN_NORM_POST;
    r->model.norm = WN_NORM_LAYER;
    r->model.ffn = WN_FFN_GELU;
    r->model.bias = true;
    r->model.qk_norm = false;
  }
  if (which == 3) {
    r->model.norm_place = WN_NORM_BOTH;
    r->model.position = WN_POS_ROPE;
    r->model.kv_heads = 1;
    r->model.ffn = WN_FFN_GEGLU;
  }
  if (which == 5) snprintf(r->train.prune.budgets, sizeof r->train.prune.budgets, "9");
  if (which == 4) {
    r->model.ffn = WN_FFN_RELU2;
    r->model.dropout = r->model.dropout_hidden = 0.1;
  }
}

static void test_loss_falls(void **state) {
  (void)state;
  for (int s = 0; s < SHAPES; s++) {
    wn_recipe r;
    struct bench b;
    wn_train_progress p = {0};
    double first = 0, last = 0;
    shape(&r, s);
    bench_init(&b, &r, "cpu", 2);
    for (uint64_t i = 0; i < 80; i++) {
      must_step(&b, i % 2, &p);
      if (i < 2) first += p.loss / 2;
      if (i >= 78) last += p.loss / 2;
    }
    if (!(first > 1 && last < 0.65 * first)) fail_msg("%s: loss %g at first, %g at last", shapes[s], first, last);
    bench_clear(&b);
  }
}

static void test_gradients(void **state) {
  (void)state;
  for (int s = 0; s < SHAPES; s++) {
    wn_recipe r;
    struct bench exact, ref, fast, slow;
    wn_train_progress p, q;
    shape(&r, s);
    r.train.precision = WN_F32;
    bench_init(&exact, &r, "cpu", 1);
    r.train.precision = WN_BF16;
    bench_init(&ref, &r, "ref", 1);
    bench_init(&fast, &r, "cpu", 2);
    setenv("WINNOW_ISA", ISA_OF_EIGHT, 1); /* with products of rounded floats */
    bench_init(&slow, &r, "cpu", 2);
    unsetenv("WINNOW_ISA");
    must_step(&exact, 0, &p);
    must_step(&ref, 0, &q);
    const double naive = bench_distance(&ref, &exact);
    must_step(&fast, 0, &q);
    const double error = bench_distance(&fast, &exact);
    if (!(naive > 1e-4 && naive < 0.02)) fail_msg("%s: the reference is %g from float32", shapes[s], naive);
    if (!(error > 1e-4 && error <= 2 * naive)) fail_msg("%s: %g from float32, ref %g", shapes[s], error, naive);
    assert_true(fabs(p.loss - q.loss) < 2e-3 * p.loss);
    must_step(&slow, 0, &q);
    if (!(bench_distance(&slow, &exact) <= 2 * naive))
      fail_msg("%s: rounded floats: %g from float32, ref %g", shapes[s], bench_distance(&slow, &exact), naive);
    bench_clear(&exact), bench_clear(&ref), bench_clear(&fast), bench_clear(&slow);
  }
}

/* With another number of threads only the last digits of gradients differ, by far less than rounding. */
static void test_threads(void **state) {
  (void)state;
  for (int s = 0; s < SHAPES; s++) {
    wn_recipe r;
    struct bench exact, one;
    wn_train_progress p, q;
    shape(&r, s);
    bench_init(&one, &r, "cpu", 1);
    r.train.precision = WN_F32;
    bench_init(&exact, &r, "cpu", 1);
    r.train.precision = WN_BF16;
    must_step(&one, 0, &p);
    must_step(&exact, 0, &q);
    const double rounding = bench_distance(&one, &exact);
    for (int threads = 2; threads <= 4; threads++) {
      struct bench more;
      bench_init(&more, &r, "cpu", threads);
      must_step(&more, 0, &q);
      const double off = bench_distance(&more, &one);
      wn_build_info info;
      must(more.ctx, wn_build_info_get(more.ctx, &info));
      /* products in tiles have the same bits; what remains are float32 sums over rows */
      if (!(off <= (strcmp(info.bfloat16, "AMX") == 0 ? 1e-7 : rounding / 20)))
        fail_msg("%s: %g with %d threads, rounding %g", shapes[s], off, threads, rounding);
      assert_true(p.loss == q.loss || strcmp(info.bfloat16, "AMX") != 0);
      bench_clear(&more);
    }
    bench_clear(&one), bench_clear(&exact);
  }
}

/* A recomputed layer has the same bits, whether or not activations are kept. So does a second trainer. */
static void test_same_bits(void **state) {
  (void)state;
  for (int s = 0; s < SHAPES; s++) {
    wn_recipe r;
    struct bench kept, again, anew;
    wn_train_progress p, q;
    shape(&r, s);
    bench_init(&kept, &r, "cpu", 2);
    bench_init(&again, &r, "cpu", 2);
    r.train.recompute = true;
    bench_init(&anew, &r, "cpu", 2);
    for (uint64_t i = 0; i < 3; i++) {
      must_step(&kept, i, &p), must_step(&again, i, &q);
      assert_true(p.loss == q.loss && p.grad_norm == q.grad_norm);
      must_step(&anew, i, &q);
      if (p.loss != q.loss || p.grad_norm != q.grad_norm)
        fail_msg("%s, step %d: loss %.17g, recomputed %.17g", shapes[s], (int)i, p.loss, q.loss);
    }
    bench_clear(&kept), bench_clear(&again), bench_clear(&anew);
  }
}

/* Where activations outweigh parameters, a step takes less than 0.7 of float32's memory. */
static void test_memory(void **state) {
  (void)state;
  uint64_t bytes[2];
  for (int bf16 = 0; bf16 < 2; bf16++) {
    wn_recipe r;
    struct bench b;
    wn_train_progress p;
    tiny_recipe(&r, true);
    r.model.layers = 6;
    r.model.width = 64;
    r.train.batch = 64;
    r.train.precision = bf16 ? WN_BF16 : WN_F32;
    bench_init(&b, &r, "cpu", 2);
    must_step(&b, 0, &p);
    bytes[bf16] = p.workspace_bytes;
    bench_clear(&b);
  }
  if (!((double)bytes[1] < 0.7 * (double)bytes[0]))
    fail_msg("workspace of %llu bytes, in float32 %llu", (unsigned long long)bytes[1], (unsigned long long)bytes[0]);
}

struct stop {
  wn_context *ctx;
  int64_t at;
};
static void on_progress(void *user, const wn_train_progress *p) {
  struct stop *s = user;
  if (p->step == s->at) wn_context_cancel(s->ctx);
}
static wn_status run(const wn_recipe *r, const char *dir, bool resume, int64_t at) {
  struct stop s = {.ctx = tiny_context("cpu", 2), .at = at};
  const wn_status status = wn_train_run(s.ctx, r, dir, resume, on_progress, &s);
  wn_context_destroy(s.ctx);
  return status;
}

static void test_resume(void **state) {
  (void)state;
  char dir[256], whole[300], parts[300];
  wn_recipe r;
  tiny_folder(dir);
  snprintf(whole, sizeof whole, "%s/whole", dir);
  snprintf(parts, sizeof parts, "%s/parts", dir);
  shape(&r, 0);
  assert_int_equal(run(&r, whole, false, 0), WN_OK);
  assert_int_equal(run(&r, parts, false, 2), WN_ERR_CANCELLED);
  assert_int_equal(run(NULL, parts, true, 0), WN_OK);
  assert_true(tiny_same_file(whole, parts, "model.safetensors"));
  assert_true(tiny_same_file(whole, parts, "optimizer.safetensors"));
  char *recipe = tiny_read(parts, "recipe.json", NULL);
  assert_non_null(recipe);
  assert_non_null(strstr(recipe, "\"precision\": \"bfloat16\""));
  free(recipe);
  tiny_remove(dir);
}

static void test_refusals(void **state) {
  (void)state;
  wn_context *ctx = tiny_context("cpu", 1);
  static const struct {
    const char *set, *text;
  } wrong[] = {{"train.precision=float16", "precision"}, {"train.precision=float64", "precision"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    wn_recipe r;
    assert_int_equal(wn_recipe_load(ctx, NULL, &wrong[i].set, 1, &r), WN_ERR_CONFIG);
    assert_non_null(strstr(wn_context_error(ctx), wrong[i].text));
    assert_non_null(strstr(wn_context_error(ctx), "float32 or bfloat16"));
  }
  wn_recipe r;
  struct bench b;
  wn_trainer *trainer = NULL;
  tiny_recipe(&r, false);
  bench_init(&b, &r, "ref", 1);
  r.train.precision = WN_F16;
  assert_int_equal(wn_trainer_create(b.ctx, b.model, &r.train, &trainer), WN_ERR_CONFIG);
  assert_non_null(strstr(wn_context_error(b.ctx), "train.precision must be float32 or bfloat16"));
  r.train.precision = WN_BF16;
  b.model->dtype = WN_F64; /* like a model in double */
  assert_int_equal(wn_trainer_create(b.ctx, b.model, &r.train, &trainer), WN_ERR_UNSUPPORTED);
  assert_non_null(strstr(wn_context_error(b.ctx), "train.precision bfloat16 needs a model of F32, found F64"));
  b.model->dtype = WN_F32;
  bench_clear(&b);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_loss_falls), cmocka_unit_test(test_gradients),
                                     cmocka_unit_test(test_threads),    cmocka_unit_test(test_same_bits),
                                     cmocka_unit_test(test_memory),     cmocka_unit_test(test_resume),
                                     cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
