/* How a model's matrices are held (wn_model_load_options.weights): in the file's layout, in the processor's, or rounded
 * to bfloat16. What each gives, and refusals. */
#include "models.h"
#include "support.h"

#include "tensor/bf16.h"
#include "winnow/convert.h"
#include "reach.h"

static char folder[512];

static int set_up(void **state) {
  (void)state;
  make_folder(folder);
  return 0;
}
static int tear_down(void **state) {
  (void)state;
  remove_folder(folder);
  return 0;
}
/* Saves one of the tests' models as a float32 checkpoint and returns it. */
static struct wn_model *seed(wn_context *ctx, bool relative) {
  wn_model_config c;
  wn_model_config_init(&c);
  c.vocab_size = 61, c.context = 48, c.layers = 2, c.width = 96, c.heads = 3, c.kv_heads = 1, c.ffn_width = 75;
  c.position = WN_POS_ROPE, c.bias = true, c.init_std = 0.1;
  if (relative) c.attention.relative.enabled = true, c.position = WN_POS_NONE;
  struct wn_model *model = model_of(ctx, &c, WN_F32);
  OK(ctx, wn_model_save(ctx, model, NULL, path_in(folder, "seed")));
  return model;
}

static struct wn_model *load(wn_context *ctx, const char *path, wn_weights weights) {
  struct wn_model *model = NULL;
  const wn_model_load_options o = {.size = sizeof o, .weights = weights};
  OK(ctx, wn_model_load(ctx, path, &o, &model));
  return model;
}

enum { B = 2, T = 32 };
static float *logits_of(wn_context *ctx, struct wn_model *model) {
  struct tokens x;
  tokens_of(&x, B, T, model->config.vocab_size, false);
  float *logits = malloc((size_t)(B * T * model->config.vocab_size) * sizeof *logits);
  assert_non_null(logits);
  OK(ctx, wn_model_logits(ctx, model, x.ids, B, T, NULL, logits));
  return logits;
}

/* Another layout of the file's numbers: the same logits to the bit, and a copy only if it was asked for. */
static void test_file_and_auto(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  wn_model_destroy(seed(ctx, false));
  const wn_convert_options o = {.size = sizeof o, .to = WN_CONVERT_WINNOW_GGUF, .typed = true, .type = WN_GGUF_Q8_0};
  OK(ctx, wn_model_convert(ctx, path_in(folder, "seed"), path_in(folder, "eight.gguf"), &o, NULL));
  struct wn_model *held[2] = {load(ctx, path_in(folder, "eight.gguf"), WN_WEIGHTS_FILE),
                              load(ctx, path_in(folder, "eight.gguf"), WN_WEIGHTS_AUTO)};
  assert_null(held[0]->strips);
  const bool has = held[1]->backend->strips_bytes && held[1]->backend->strips_bytes(WN_GGUF_Q8_0, 16, 96) > 0;
  assert_int_equal(held[1]->strips != NULL, has);
  int strips = 0;
  for (int i = 0; i < held[1]->table.count; i++)
    for (int p = 0; p < held[1]->table.rows[i].packed.count; p++)
      strips += !!held[1]->table.rows[i].packed.part[p].strips;
  assert_true(has ? strips >= 7
                  : strips == 0); /* the embedding and three matrices a layer: rows of 75 do not fit the layout */
  float *logits[2];
  for (int i = 0; i < 2; i++) logits[i] = logits_of(ctx, held[i]);
  assert_memory_equal(logits[0], logits[1], (size_t)(B * T) * 61 * sizeof(float));
  for (int i = 0; i < 2; i++) free(logits[i]), wn_model_destroy(held[i]);
  wn_context_destroy(ctx);
}

/* Every suitable matrix is rounded to nearest and takes half the bytes. Vectors and a mechanism's tables stay float32.
 * The reference computes with exactly these numbers. */
static void test_bfloat16(void **state) {
  (void)state;
  for (int relative = 0; relative < 2; relative++) {
    wn_context *ctx = context_of("ref", 2);
    struct wn_model *seeded = seed(ctx, relative), *held = load(ctx, path_in(folder, "seed"), WN_WEIGHTS_BFLOAT16);
    int rounded = 0;
    for (int i = 0; i < held->table.count; i++) {
      const struct wn_param *row = &held->table.rows[i];
      float *dense = (float *)reach(seeded->params) + seeded->table.rows[i].offset;
      const int64_t n = (int64_t)wn_param_elements(row);
      assert_int_equal(row->packed.count > 0, row->packs);
      wn_tensor_info info;
      OK(ctx, wn_model_tensor_info(held, i, &info));
      assert_int_equal(info.bytes, (size_t)n * (row->packs ? 2 : 4));
      if (!row->packs) {
        assert_memory_equal((float *)reach(held->params) + row->offset, dense, (size_t)n * sizeof *dense);
        continue;
      }
      uint16_t *bits = malloc((size_t)n * sizeof *bits);
      assert_non_null(bits);
      wn_bf16_from_f32(1, n, dense, bits);
      wn_bf16_to_f32(1, n, bits, dense);
      int64_t at = 0;
      for (int p = 0; p < row->packed.count; p++) {
        const int64_t part = row->packed.part[p].rows * row->shape[1];
        assert_int_equal(info.types[p], WN_GGUF_BF16);
        assert_memory_equal(reach(row->packed.part[p].data), bits + at, (size_t)part * sizeof *bits);
        at += part;
      }
      assert_int_equal(at, n);
      free(bits);
      rounded++;
    }
    assert_true(rounded >= 9);
    float *a = logits_of(ctx, seeded), *b = logits_of(ctx, held);
    for (int64_t i = 0; i < B * T * 61; i++) assert_true(fabsf(a[i] - b[i]) <= 1e-6f * (1 + fabsf(a[i])));
    free(a), free(b);
    wn_model_destroy(seeded), wn_model_destroy(held);
    wn_context_destroy(ctx);
  }
}

static void test_refused(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_model_destroy(seed(ctx, false));
  wn_model *model = NULL;
  wn_model_load_options o = {.size = sizeof o, .weights = (wn_weights)3};
  assert_refused(ctx, wn_model_load(ctx, path_in(folder, "seed"), &o, &model), WN_ERR_ARGUMENT, "weights of");
  o.weights = WN_WEIGHTS_BFLOAT16, o.as_float = true;
  assert_refused(ctx, wn_model_load(ctx, path_in(folder, "seed"), &o, &model), WN_ERR_ARGUMENT, "as_float asks for");
  assert_null(model);
  wn_context_destroy(ctx);
}

struct told {
  int calls;
  uint64_t done, total;
};
static void tell(void *user, uint64_t done, uint64_t total) {
  struct told *t = user;
  assert_true(done > t->done && done <= total && (t->calls == 0 || total == t->total));
  t->calls++, t->done = done, t->total = total;
}

/* Whoever waits for a model is told how much of it is done, and at the end that all is. */
static void test_progress(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 2);
  wn_model_destroy(seed(ctx, false));
  const wn_convert_options o = {.size = sizeof o, .to = WN_CONVERT_WINNOW_GGUF, .typed = true, .type = WN_GGUF_Q8_0};
  OK(ctx, wn_model_convert(ctx, path_in(folder, "seed"), path_in(folder, "eight.gguf"), &o, NULL));
  uint64_t totals[4];
  for (int i = 0; i < 4; i++) {
    struct told told = {0};
    const wn_model_load_options load = {.size = sizeof load,
                                        .as_float = i == 1,
                                        .check_tensors = i == 3 ? WN_CHECK_NO : WN_CHECK_AUTO,
                                        .progress = tell,
                                        .user = &told};
    struct wn_model *model;
    OK(ctx, wn_model_load(ctx, path_in(folder, i == 2 ? "seed" : "eight.gguf"), &load, &model));
    assert_true(told.calls > 3 && told.done == told.total && told.total > 0);
    totals[i] = told.total;
    wn_model_destroy(model);
  }
  assert_true(totals[0] == totals[1] && totals[0] == 2 * totals[3] && totals[2] > totals[0]);
  struct told told = {0};
  const wn_model_load_options load = {.size = sizeof load, .progress = tell, .user = &told};
  struct wn_model *model;
  assert_refused(ctx, wn_model_load(ctx, path_in(folder, "none"), &load, &model), WN_ERR_IO, "none");
  assert_int_equal(told.calls, 0);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_progress, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_file_and_auto, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_bfloat16, set_up, tear_down),
      cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
