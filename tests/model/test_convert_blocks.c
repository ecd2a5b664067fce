/* wn_model_convert of tensors whose rows are not whole blocks: norm weights and biases (vectors, with one element a
 * row) in every block type convert to the values that loading gives, as do matrices whose rows are permuted. Tensors of
 * the wrong rank are refused, and so are ranges outside a tensor. */
#include "folder.h"

#include "formats/import.h"
#include "packed_weights.h"
#include "winnow/convert.h"
#include "winnow/model.h"

static wn_status convert(const char *from, const char *out, wn_convert_form form) {
  const wn_convert_options o = {.size = sizeof o, .to = form, .overwrite = true};
  return wn_model_convert(ctx, from, out, &o, NULL);
}

/* Widths are whole blocks of every type. The bias of q has 256 elements, those of k and v have 64. */
static void make_model(const char *path, bool bias) {
  wn_model_config c;
  wn_model *model;
  wn_model_config_init(&c);
  c.vocab_size = 5, c.context = 16, c.layers = 1, c.width = 256, c.heads = 4, c.kv_heads = 1, c.ffn_width = 256;
  c.position = WN_POS_ROPE;
  c.bias = bias;
  if (!bias) c.head_size = 256, c.heads = 1, c.qk_norm = true;
  assert_ok(ctx, wn_model_create(ctx, &c, 1, &model));
  assert_ok(ctx, wn_model_save(ctx, model, NULL, path_in(folder, "seed")));
  wn_model_destroy(model);
  assert_ok(ctx, convert(path_in(folder, "seed"), path, WN_CONVERT_GGUF));
}

struct rewrite {
  const wn_gguf *file;
  wn_gguf_tensor tensors[32];
};

static wn_status produce(void *user, int i, void *out, size_t bytes) {
  const struct rewrite *r = user;
  const wn_gguf_tensor *from = wn_gguf_tensor_at(r->file, i), *to = &r->tensors[i];
  const size_t block = wn_gguf_block_bytes(to->type);
  for (size_t at = 0; from->type != to->type && at < bytes; at += block)
    packed_block(to->type, (uint8_t *)out + at, 7 + (uint64_t)i, at / block);
  if (from->type == to->type) memcpy(out, from->data, bytes);
  return WN_OK;
}

/* Writes the file again, with random blocks of `type` for the vectors that are whole blocks. */
static int rewrite(const char *from, const char *out, wn_gguf_type type) {
  struct rewrite r;
  wn_gguf *file;
  wn_gguf_values *values;
  int changed = 0;
  assert_ok(ctx, wn_gguf_open(ctx, from, &file));
  assert_ok(ctx, wn_gguf_values_create(ctx, &values));
  for (int i = 0; i < wn_gguf_value_count(file); i++) wn_gguf_values_copy(values, wn_gguf_value_at(file, i));
  r.file = file;
  assert_true(wn_gguf_tensor_count(file) <= 32);
  for (int i = 0; i < wn_gguf_tensor_count(file); i++) {
    r.tensors[i] = *wn_gguf_tensor_at(file, i);
    if (r.tensors[i].ndim != 1 || r.tensors[i].shape[0] % wn_gguf_block_weights(type) != 0) continue;
    r.tensors[i].type = type;
    changed++;
  }
  assert_ok(ctx, wn_gguf_write(ctx, out, values, r.tensors, wn_gguf_tensor_count(file), produce, &r));
  wn_gguf_values_destroy(values);
  wn_gguf_close(file);
  return changed;
}

/* turned: in q and k, b has RoPE pairs in halves where a has them adjacent: `heads` heads of D rows. */
static void same_values(const char *a, const char *b, bool turned, int64_t D, int64_t heads) {
  wn_model *x, *y;
  assert_ok(ctx, wn_model_load(ctx, a, WN_OPTIONS(wn_model_load_options, .as_float = true), &x));
  assert_ok(ctx, wn_model_load(ctx, b, WN_OPTIONS(wn_model_load_options, .as_float = true), &y));
  assert_int_equal(wn_model_tensor_count(x), wn_model_tensor_count(y));
  for (int i = 0; i < wn_model_tensor_count(x); i++) {
    wn_safetensors_entry s, t;
    assert_ok(ctx, wn_model_tensor_at(x, i, &s));
    assert_ok(ctx, wn_model_tensor_at(y, i, &t));
    assert_string_equal(s.name, t.name);
    assert_int_equal(s.bytes, t.bytes);
    const int64_t K = s.ndim > 1 ? s.shape[1] : 1;
    const bool qkv = strstr(s.name, "attn.qkv.") != NULL;
    for (int64_t r = 0; r < s.shape[0]; r++) {
      int64_t from = r;
      if (turned && qkv && r < heads * D) from = r / D * D + 2 * (r % D % (D / 2)) + r % D / (D / 2);
      if (memcmp((const float *)s.data + from * K, (const float *)t.data + r * K, (size_t)K * sizeof(float)) != 0)
        fail_msg("%s: %s, row %d differs", b, s.name, (int)r);
    }
  }
  wn_model_destroy(x);
  wn_model_destroy(y);
}

static const wn_gguf_type blocks[] = {WN_GGUF_F16,  WN_GGUF_BF16, WN_GGUF_Q8_0, WN_GGUF_Q4_0, WN_GGUF_Q4_1,
                                      WN_GGUF_Q5_0, WN_GGUF_Q5_1, WN_GGUF_Q4_K, WN_GGUF_Q5_K, WN_GGUF_Q6_K};

static void vectors_in_blocks(void **state) {
  (void)state;
  for (int bias = 0; bias < 2; bias++) {
    const int64_t D = bias ? 64 : 256, turned_heads = bias ? 5 : 2;
    make_model(path_in(folder, "plain.gguf"), bias != 0);
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
      char blocked[1024];
      snprintf(blocked, sizeof blocked, "%s", path_in(folder, "blocks.gguf"));
      assert_true(rewrite(path_in(folder, "plain.gguf"), blocked, blocks[i]) >= 3);
      assert_ok(ctx, convert(blocked, path_in(folder, "hf"), WN_CONVERT_HF));
      same_values(blocked, path_in(folder, "hf"), bias != 0, D, turned_heads);
      assert_ok(ctx, convert(blocked, path_in(folder, "own"), WN_CONVERT_WINNOW));
      same_values(blocked, path_in(folder, "own"), bias != 0, D, turned_heads);
      assert_ok(ctx, convert(blocked, path_in(folder, "again.gguf"), WN_CONVERT_GGUF));
      same_values(blocked, path_in(folder, "again.gguf"), false, D, turned_heads);
      assert_ok(ctx, convert(blocked, path_in(folder, "own.gguf"), WN_CONVERT_WINNOW_GGUF));
      same_values(blocked, path_in(folder, "own.gguf"), bias != 0, D, turned_heads);
    }
  }
}

static wn_status values_of(void *user, int i, void *out, size_t bytes) {
  (void)user;
  (void)i;
  memset(out, 0, bytes);
  return WN_OK;
}

/* Any range of tensors with one to four dimensions. */
static void ranges(void **state) {
  (void)state;
  wn_gguf_values *values;
  float all[2 * 2 * 256 + 1], part[2 * 2 * 256 + 1];
  static const wn_gguf_tensor shapes[] = {{.name = "a", .ndim = 1, .shape = {256}},
                                          {.name = "b", .ndim = 2, .shape = {3, 256}},
                                          {.name = "c", .ndim = 3, .shape = {2, 2, 256}},
                                          {.name = "d", .ndim = 4, .shape = {1, 2, 1, 256}}};
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
    for (int s = 0; s < 4; s++) {
      wn_gguf_tensor t = shapes[s];
      int64_t n = 1;
      for (int d = 0; d < t.ndim; d++) n *= t.shape[d];
      struct packed_weights w;
      packed_weights_make(&w, n / 256, 256, 1, &blocks[i], (uint64_t)s);
      struct wn_tensor tensor = {.t = t, .is_weights = true, .file = "here"};
      tensor.t.type = blocks[i];
      tensor.t.data = w.packed.part[0].data;
      tensor.t.bytes = (size_t)(n / 256) * wn_packed_row_bytes(blocks[i], 256);
      assert_ok(ctx, wn_tensor_read(ctx, &tensor, 0, n, all));
      assert_memory_equal(all, w.dense, (size_t)n * sizeof *all);
      for (int64_t first = 0; first <= n; first += 37) {
        for (int64_t count = 0; count <= n - first; count += 61) {
          part[count] = 12345;
          assert_ok(ctx, wn_tensor_read(ctx, &tensor, first, count, part));
          assert_memory_equal(part, all + first, (size_t)count * sizeof *part);
          assert_true(part[count] == 12345); /* and no further */
        }
        assert_refused(ctx, wn_tensor_read(ctx, &tensor, first, n - first + 1, part), WN_ERR_SHAPE, "weights");
      }
      assert_refused(ctx, wn_tensor_read(ctx, &tensor, -1, 1, part), WN_ERR_SHAPE, "weights");
      assert_refused(ctx, wn_tensor_read(ctx, &tensor, INT64_MAX, INT64_MAX, part), WN_ERR_SHAPE, "weights");
      packed_weights_clear(&w);
    }
  }
  /* Integers and tensors without dimensions are not weights. Rows that are not whole blocks can neither be written nor
   * read. */
  const struct wn_tensor none = {.t = {.name = "x"}, .file = "here", .dtype = "I64"};
  assert_refused(ctx, wn_tensor_read(ctx, &none, 0, 1, part), WN_ERR_SHAPE, "0 weights");
  const wn_gguf_tensor torn = {.name = "torn", .type = WN_GGUF_Q4_0, .ndim = 1, .shape = {33}, .data = all};
  assert_refused(ctx, wn_gguf_dequantize(ctx, &torn, 0, 1, part), WN_ERR_ARGUMENT, "whole blocks");
  assert_ok(ctx, wn_gguf_values_create(ctx, &values));
  assert_refused(ctx, wn_gguf_write(ctx, path_in(folder, "torn.gguf"), values, &torn, 1, values_of, NULL),
                 WN_ERR_ARGUMENT, "torn");
  wn_gguf_values_destroy(values);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(vectors_in_blocks), cmocka_unit_test(ranges)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
