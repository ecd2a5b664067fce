/* wn_model_convert to quantised types: which tensor gets which type, in llama.cpp's mixtures and where rows are not
 * whole blocks. The values read back are those of wn_gguf_encode. */
#include "folder.h"

#include <string.h>

#include "io/gguf_types.h"
#include "winnow/convert.h"
#include "winnow/model.h"

static void save_model(const char *dir, int64_t width, bool tied) {
  wn_model_config c;
  wn_model *model;
  wn_model_config_init(&c);
  c.vocab_size = 9, c.context = 16, c.layers = 8, c.width = width, c.heads = 4, c.kv_heads = 2, c.head_size = 64;
  c.ffn_width = 512, c.position = WN_POS_ROPE, c.tied = tied;
  assert_ok(ctx, wn_model_create(ctx, &c, 1, &model));
  assert_ok(ctx, wn_model_save(ctx, model, NULL, dir));
  wn_model_destroy(model);
}

static void convert(const char *from, const char *out, wn_gguf_type type, bool mixed) {
  const wn_convert_options o = {.size = sizeof o,
                                .to = WN_CONVERT_GGUF,
                                .typed = true,
                                .type = type,
                                .mixed = mixed,
                                .overwrite = true,
                                .check_tensors = WN_CHECK_YES};
  assert_ok(ctx, wn_model_convert(ctx, from, out, &o, NULL));
}

static void has_type(const wn_gguf *file, const char *name, wn_gguf_type type) {
  const wn_gguf_tensor *t = wn_gguf_tensor_find(file, name);
  if (!t) fail_msg("no tensor %s", name);
  if (t->type != type) fail_msg("%s is %s, expected %s", name, wn_gguf_type_name(t->type), wn_gguf_type_name(type));
}

static void mixtures(void **state) {
  (void)state;
  static const wn_gguf_type mixed[] = {WN_GGUF_Q4_K, WN_GGUF_Q5_K};
  static const bool more[8] = {true, false, false, true, false, false, true, true};
  wn_gguf *file;
  for (int tied = 0; tied < 2; tied++) {
    save_model(path_in(folder, "own"), 256, tied != 0);
    for (int i = 0; i < 2; i++) {
      const wn_gguf_type type = mixed[i];
      convert(path_in(folder, "own"), path_in(folder, "m.gguf"), type, true);
      assert_ok(ctx, wn_gguf_open(ctx, path_in(folder, "m.gguf"), &file));
      has_type(file, "token_embd.weight", tied ? WN_GGUF_Q6_K : type);
      if (!tied) has_type(file, "output.weight", WN_GGUF_Q6_K);
      for (int l = 0; l < 8; l++) {
        static const char *const names[] = {"attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up"};
        char name[64];
        for (int k = 0; k < 5; k++) {
          snprintf(name, sizeof name, "blk.%d.%s.weight", l, names[k]);
          has_type(file, name, type);
        }
        snprintf(name, sizeof name, "blk.%d.attn_v.weight", l);
        has_type(file, name, more[l] ? WN_GGUF_Q6_K : type);
        snprintf(name, sizeof name, "blk.%d.ffn_down.weight", l);
        has_type(file, name, more[l] ? WN_GGUF_Q6_K : type);
        snprintf(name, sizeof name, "blk.%d.attn_norm.weight", l);
        has_type(file, name, WN_GGUF_F32);
      }
      wn_gguf_close(file);
    }
  }
}

/* Rows of 96 are not whole blocks of 256, rows of 512 are. Rows of 100 are not even whole blocks of 32. */
static void rows_of_no_whole_blocks(void **state) {
  (void)state;
  static const struct {
    wn_gguf_type type, narrow;
  } cases[] = {{WN_GGUF_Q4_K, WN_GGUF_Q5_0},
               {WN_GGUF_Q5_K, WN_GGUF_Q5_1},
               {WN_GGUF_Q6_K, WN_GGUF_Q8_0},
               {WN_GGUF_Q4_0, WN_GGUF_Q4_0}};
  wn_gguf *file;
  save_model(path_in(folder, "narrow"), 96, false);
  save_model(path_in(folder, "odd"), 100, false);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    convert(path_in(folder, "narrow"), path_in(folder, "n.gguf"), cases[i].type, false);
    assert_ok(ctx, wn_gguf_open(ctx, path_in(folder, "n.gguf"), &file));
    has_type(file, "blk.3.attn_q.weight", cases[i].narrow);
    has_type(file, "blk.3.ffn_down.weight", cases[i].type);
    wn_gguf_close(file);
    convert(path_in(folder, "odd"), path_in(folder, "o.gguf"), cases[i].type, false);
    assert_ok(ctx, wn_gguf_open(ctx, path_in(folder, "o.gguf"), &file));
    has_type(file, "blk.3.attn_q.weight", WN_GGUF_F16);
    has_type(file, "blk.3.attn_output.weight", cases[i].type);
    wn_gguf_close(file);
  }
}

/* The file's weights are the encoded blocks of the model's rows. */
static void values(void **state) {
  (void)state;
  wn_model *own, *file;
  wn_safetensors_entry a, b;
  static float want[512 * 256];
  static uint8_t blocks[512 * 256 / 32 * 34];
  save_model(path_in(folder, "own"), 256, false);
  for (int type = WN_GGUF_Q8_0; type < WN_GGUF_TYPE_COUNT; type++) {
    convert(path_in(folder, "own"), path_in(folder, "v.gguf"), (wn_gguf_type)type, false);
    assert_ok(ctx,
              wn_model_load(ctx, path_in(folder, "own"), WN_OPTIONS(wn_model_load_options, .as_float = true), &own));
    assert_ok(
        ctx, wn_model_load(ctx, path_in(folder, "v.gguf"), WN_OPTIONS(wn_model_load_options, .as_float = true), &file));
    int compared = 0;
    for (int i = 0; i < wn_model_tensor_count(own); i++) {
      assert_ok(ctx, wn_model_tensor_at(own, i, &a));
      assert_ok(ctx, wn_model_tensor_at(file, i, &b));
      assert_string_equal(a.name, b.name);
      if (a.ndim != 2 || strstr(a.name, "qkv")) continue; /* rows of q and k are permuted */
      const int64_t n = (int64_t)(a.bytes / sizeof(float)) < 512 * 256 ? (int64_t)(a.bytes / sizeof(float)) : 512 * 256;
      assert_ok(ctx, wn_gguf_encode(ctx, (wn_gguf_type)type, a.data, n, blocks));
      wn_gguf_decode((wn_gguf_type)type, blocks, 0, n, want);
      if (memcmp(want, b.data, (size_t)n * sizeof *want) != 0) fail_msg("%s as %s", a.name, wn_gguf_type_name(type));
      compared++;
    }
    assert_true(compared >= 8 * 3 + 2);
    wn_model_destroy(own);
    wn_model_destroy(file);
  }
}

static void refusals(void **state) {
  (void)state;
  save_model(path_in(folder, "own"), 96, false);
  wn_convert_options o = {.size = sizeof o, .to = WN_CONVERT_GGUF, .typed = true, .type = WN_GGUF_Q6_K, .mixed = true};
  assert_refused(ctx, wn_model_convert(ctx, path_in(folder, "own"), path_in(folder, "r.gguf"), &o, NULL),
                 WN_ERR_ARGUMENT, "Q4_K or Q5_K, not Q6_K");
  o.typed = false;
  assert_refused(ctx, wn_model_convert(ctx, path_in(folder, "own"), path_in(folder, "r.gguf"), &o, NULL),
                 WN_ERR_ARGUMENT, "not the source's");
  o.typed = true, o.mixed = false, o.to = WN_CONVERT_HF;
  assert_refused(ctx, wn_model_convert(ctx, path_in(folder, "own"), path_in(folder, "r"), &o, NULL), WN_ERR_UNSUPPORTED,
                 "Q6_K needs GGUF");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(mixtures), cmocka_unit_test(rows_of_no_whole_blocks),
                                     cmocka_unit_test(values), cmocka_unit_test(refusals)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
