/* Steps of training and of decoding on the emulated backend: they make nothing on the device (no array, no pinned
 * memory, no event) and ask cuBLASLt for no algorithm once the first is done; gradients in bfloat16 are float32's as
 * closely as the reference's of the same precision. */
#include "train/tiny.h"

#include <math.h>

#include "backends/backends.h"
#include "cuda/emulate_api.h"
#include "train/trainer.h"
#include "winnow/model.h"

struct bench {
  wn_context *ctx;
  wn_recipe recipe;
  wn_model *model;
  wn_trainer *trainer;
  wn_data_source *source;
  int64_t rows;
  int32_t *tokens, *targets;
};

static void bench_init(struct bench *b, const wn_recipe *recipe, const char *backend, wn_dtype precision) {
  *b = (struct bench){.recipe = *recipe, .ctx = tiny_context(backend, 1)};
  wn_model_config *m = &b->recipe.model;
  b->recipe.train.precision = precision;
  wn_data_config_requirements(&b->recipe.data, &m->vocab_size, &m->context);
  must(b->ctx, wn_model_config_resolve(b->ctx, m));
  b->rows = recipe->train.batch * recipe->train.accumulate;
  must(b->ctx, wn_model_create(b->ctx, m, recipe->train.seed, &b->model));
  must(b->ctx, wn_trainer_create(b->ctx, b->model, &b->recipe.train, &b->trainer));
  must(b->ctx, wn_data_source_create(b->ctx, &b->recipe.data, "train", m->context, (int32_t)m->vocab_size, &b->source));
  b->tokens = calloc((size_t)(b->rows * m->context), sizeof *b->tokens);
  b->targets = calloc((size_t)(b->rows * m->context), sizeof *b->targets);
}

static void bench_clear(struct bench *b) {
  wn_data_source_destroy(b->source);
  wn_trainer_destroy(b->trainer);
  wn_model_destroy(b->model);
  wn_context_destroy(b->ctx);
  free(b->tokens), free(b->targets);
}

static double bench_step(struct bench *b, uint64_t step) {
  wn_train_progress p = {0};
  must(b->ctx,
       wn_data_source_batch(b->ctx, b->source, b->recipe.train.seed, step, b->rows, b->tokens, b->targets, NULL));
  must(b->ctx, wn_trainer_step(b->ctx, b->trainer, b->tokens, b->targets, NULL, &p));
  const char *error = wn_emulate_error();
  if (error) fail_msg("%s", error);
  return p.loss;
}

/* The distance of all gradients from `exact`'s, over their length. */
static double distance(const struct bench *b, const struct bench *exact) {
  double off = 0, all = 0;
  for (int i = 0; i < wn_model_tensor_count(b->model); i++) {
    wn_safetensors_entry x, y;
    must(b->ctx, wn_trainer_gradient_at(b->trainer, i, &x));
    must(b->ctx, wn_trainer_gradient_at(exact->trainer, i, &y));
    const float *got = x.data, *want = y.data;
    for (size_t k = 0; k < x.bytes / sizeof *got; k++) {
      off += ((double)got[k] - (double)want[k]) * ((double)got[k] - (double)want[k]);
      all += (double)want[k] * (double)want[k];
    }
  }
  return sqrt(off / all);
}

static void shape(wn_recipe *r, int which) {
  tiny_recipe(r, which == 1);
  if (which == 1) r->model.attention.selective.mem.enabled = true;
  if (which == 2) {
    r->model.norm_place = WN_NORM_POST;
    r->model.norm = WN_NORM_LAYER;
    r->model.ffn = WN_FFN_GELU;
    r->model.bias = true;
    r->model.qk_norm = false;
  }
  if (which == 3) {
    r->model.position = WN_POS_ROPE;
    r->model.kv_heads = 1;
    r->model.ffn = WN_FFN_GEGLU;
    r->train.optimizer = WN_OPT_MUON;
  }
}

static void test_training(void **state) {
  (void)state;
  for (int s = 0; s < 4; s++)
    for (int bf16 = 0; bf16 < 2; bf16++) {
      wn_recipe r;
      struct bench b;
      wn_memory_info before, after;
      uint64_t asked, again;
      shape(&r, s);
      bench_init(&b, &r, "cuda", bf16 ? WN_BF16 : WN_F32);
      bench_step(&b, 0);
      const uint64_t made = wn_emulate_allocations(), products = wn_emulate_products(&asked);
      wn_memory_info_get(&before);
      bench_step(&b, 1), bench_step(&b, 2);
      wn_memory_info_get(&after);
      assert_int_equal(wn_emulate_allocations(), made);
      assert_int_equal(after.total_allocations, before.total_allocations);
      assert_true(wn_emulate_products(&again) > products + 20 || !wn_emulated());
      assert_int_equal(again, asked);
      bench_clear(&b);
    }
}

static void test_bfloat16(void **state) {
  (void)state;
  for (int s = 0; s < 4; s++) {
    wn_recipe r;
    struct bench exact, ref, cuda;
    shape(&r, s);
    bench_init(&exact, &r, "ref", WN_F32);
    bench_init(&ref, &r, "ref", WN_BF16);
    bench_init(&cuda, &r, "cuda", WN_BF16);
    const double loss = bench_step(&exact, 0);
    bench_step(&ref, 0);
    const double naive = distance(&ref, &exact), cuda_loss = bench_step(&cuda, 0), error = distance(&cuda, &exact);
    if (!(naive > 1e-4 && naive < 0.02)) fail_msg("shape %d: the reference is %g from float32", s, naive);
    if (!(error > 1e-4 && error <= 2 * naive)) fail_msg("shape %d: %g from float32, ref %g", s, error, naive);
    if (!(fabs(loss - cuda_loss) < 2e-3 * loss)) fail_msg("shape %d: losses %g and %g", s, loss, cuda_loss);
    bench_clear(&exact), bench_clear(&ref), bench_clear(&cuda);
  }
}

static void test_decoding(void **state) {
  (void)state;
  for (int s = 0; s < 4; s++) {
    wn_recipe r;
    struct bench b;
    wn_session *session;
    wn_memory_info before, after;
    shape(&r, s);
    bench_init(&b, &r, "cuda", WN_F32);
    float *logits = malloc((size_t)b.recipe.model.vocab_size * sizeof *logits);
    must(b.ctx, wn_session_create(b.ctx, b.model, 1, 0, &session));
    must(b.ctx, wn_session_feed(b.ctx, session, (const int32_t[]){1, 2, 3}, 3, 0, logits));
    must(b.ctx, wn_session_feed(b.ctx, session, (const int32_t[]){4}, 1, 0, logits));
    const uint64_t made = wn_emulate_allocations();
    wn_memory_info_get(&before);
    for (int32_t token = 1; token < 5; token++) must(b.ctx, wn_session_feed(b.ctx, session, &token, 1, 0, logits));
    wn_memory_info_get(&after);
    assert_int_equal(wn_emulate_allocations(), made);
    assert_int_equal(after.total_allocations, before.total_allocations);
    const char *error = wn_emulate_error();
    if (error) fail_msg("%s", error);
    wn_session_destroy(session);
    free(logits);
    bench_clear(&b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_training),
      cmocka_unit_test(test_bfloat16),
      cmocka_unit_test(test_decoding),
  };
  wn_backend_cuda_linked((wn_backend_cuda_table)());
  return cmocka_run_group_tests(tests, NULL, NULL);
}
