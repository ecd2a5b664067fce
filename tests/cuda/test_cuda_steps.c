/* Training and decoding steps on the emulated backend. After the first training step, or the third decoding step, they
 * allocate nothing on the device (array, pinned memory, event, graph) and ask cuBLASLt for no algorithm. Gradients in
 * bfloat16 are as close to float32 as the reference's in the same precision. */
#include "train/bench.h"

#include "backends/backends.h"
#include "cuda/emulate_api.h"
#include "winnow/generate.h"

static void begin(struct bench *b, const wn_recipe *recipe, const char *backend, wn_dtype precision) {
  wn_recipe with = *recipe;
  with.train.precision = precision;
  bench_init(b, &with, backend, 1);
}

static double loss_of_step(struct bench *b, uint64_t step) {
  wn_train_progress p = {0};
  must(b->ctx, bench_step(b, step, &p));
  const char *error = wn_emulate_error();
  if (error) fail_msg("%s", error);
  return p.loss;
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
  if (which == 4) {
    r->model.kv_heads = 1;
    const char *gates =
        "{\"forget\":{\"per_query_head\":true},\"write\":{\"window\":2,\"loss\":0.1,\"keys\":true,\"hidden\":7},"
        "\"fade\":{\"loss\":0.2,\"keep\":0.1}}";
    must(NULL, wn_attention_config_parse(NULL, gates, &r->model.attention));
  }
}
enum { SHAPES = 5 };

static void test_training(void **state) {
  (void)state;
  for (int s = 0; s < SHAPES; s++)
    for (int bf16 = 0; bf16 < 2; bf16++) {
      wn_recipe r;
      struct bench b;
      wn_memory_info before, after;
      uint64_t asked, again;
      shape(&r, s);
      begin(&b, &r, "cuda", bf16 ? WN_BF16 : WN_F32);
      loss_of_step(&b, 0);
      const uint64_t made = wn_emulate_allocations(), products = wn_emulate_products(&asked);
      wn_memory_info_get(&before);
      loss_of_step(&b, 1), loss_of_step(&b, 2);
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
  for (int s = 0; s < SHAPES; s++) {
    wn_recipe r;
    struct bench exact, ref, cuda;
    shape(&r, s);
    begin(&exact, &r, "ref", WN_F32);
    begin(&ref, &r, "ref", WN_BF16);
    begin(&cuda, &r, "cuda", WN_BF16);
    const double loss = loss_of_step(&exact, 0);
    loss_of_step(&ref, 0);
    const double naive = bench_distance(&ref, &exact), cuda_loss = loss_of_step(&cuda, 0),
                 error = bench_distance(&cuda, &exact);
    if (!(naive > 1e-4 && naive < 0.02)) fail_msg("shape %d: the reference is %g from float32", s, naive);
    if (!(error > 1e-4 && error <= 2 * naive)) fail_msg("shape %d: %g from float32, ref %g", s, error, naive);
    if (!(fabs(loss - cuda_loss) < 2e-3 * loss)) fail_msg("shape %d: losses %g and %g", s, loss, cuda_loss);
    bench_clear(&exact), bench_clear(&ref), bench_clear(&cuda);
  }
}

static void test_decoding(void **state) {
  (void)state;
  for (int s = 0; s < SHAPES; s++) {
    wn_recipe r;
    struct bench b;
    wn_session *session;
    wn_memory_info before, after;
    shape(&r, s);
    begin(&b, &r, "cuda", WN_F32);
    float *logits = malloc((size_t)b.recipe.model.vocab_size * sizeof *logits);
    must(b.ctx, wn_session_create(b.ctx, b.model, NULL, &session));
    must(b.ctx, wn_session_feed(b.ctx, session, (const int32_t[]){1, 2, 3}, 3, 0, logits));
    for (int32_t token = 4; token < 7; token++) /* the first token tries cuBLASLt's shapes, the third makes a graph */
      must(b.ctx, wn_session_feed(b.ctx, session, &token, 1, 0, logits));
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

/* With drafts the same tokens come, some of them without a step of their own. */
static void test_drafts(void **state) {
  (void)state;
  const int32_t prompt[] = {1, 2, 3};
  const wn_logit_bias often[] = {{4, 2}, {5, 2.5f}}; /* so that the text repeats itself */
  for (int s = 0; s < 2; s++) {
    wn_recipe r;
    struct bench b;
    int32_t drawn[2][12];
    wn_generate_result result[2];
    shape(&r, s);
    begin(&b, &r, "cuda", WN_F32);
    for (int k = 0; k < 2; k++) {
      wn_generate_options o;
      wn_generate_options_init(&o, sizeof o);
      o.prompt = prompt, o.prompt_count = sizeof prompt / sizeof *prompt;
      o.sampling.temperature = 0, o.max_tokens = 12, o.drawn = drawn[k], o.draft_tokens = 3 * k;
      o.biases = often, o.bias_count = 2;
      must(b.ctx, wn_generate(b.ctx, b.model, &o, &result[k]));
    }
    const char *error = wn_emulate_error();
    if (error) fail_msg("%s", error);
    assert_int_equal(result[0].tokens, result[1].tokens);
    assert_memory_equal(drawn[0], drawn[1], (size_t)result[0].tokens * sizeof **drawn);
    assert_true(result[1].accepted > 0);
    bench_clear(&b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_training),
      cmocka_unit_test(test_bfloat16),
      cmocka_unit_test(test_decoding),
      cmocka_unit_test(test_drafts),
  };
  wn_backend_cuda_linked((wn_backend_cuda_table)());
  return cmocka_run_group_tests(tests, NULL, NULL);
}
