/* NaN and infinity in weights of every storage type: the scan names the first one, loading and converting refuse them
 * with the file and tensor, options turn this off, and an evaluation whose loss is not finite is an error. */
#include "folder.h"

#include <math.h>
#include "io/finite.h"
#include "packed_weights.h"
#include "winnow/convert.h"
#include "winnow/generate.h"
#include "winnow/model.h"
#include "winnow/safetensors.h"
#include "winnow/train.h"

/* Every type, with the byte positions of its numbers. */
static const struct {
  wn_gguf_type type;
  int places[2], count, bytes;
} kinds[] = {{WN_GGUF_F32, {0}, 1, 4},     {WN_GGUF_F16, {0}, 1, 2},     {WN_GGUF_BF16, {0}, 1, 2},
             {WN_GGUF_Q8_0, {0}, 1, 2},    {WN_GGUF_Q4_0, {0}, 1, 2},    {WN_GGUF_Q4_1, {0, 2}, 2, 2},
             {WN_GGUF_Q5_0, {0}, 1, 2},    {WN_GGUF_Q5_1, {0, 2}, 2, 2}, {WN_GGUF_Q4_K, {0, 2}, 2, 2},
             {WN_GGUF_Q5_K, {0, 2}, 2, 2}, {WN_GGUF_Q6_K, {208}, 1, 2}};

static void put(wn_gguf_type type, uint8_t *at, double value) {
  const float x = (float)value;
  uint32_t word;
  memcpy(&word, &x, sizeof word);
  uint16_t half = type == WN_GGUF_BF16 ? (uint16_t)(word >> 16) : isnan(x) ? 0x7e01 : x > 0 ? 0x7c00 : 0xfc00;
  if (type == WN_GGUF_F32)
    memcpy(at, &word, sizeof word);
  else
    memcpy(at, &half, sizeof half);
}

/* The largest finite numbers and random blocks pass. A single number that is not finite is found, anywhere. */
static void scan(void **state) {
  (void)state;
  static const double bad[] = {NAN, INFINITY, -INFINITY};
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    const wn_gguf_type type = kinds[k].type;
    const int64_t weights = wn_gguf_block_weights(type), blocks = 5000;
    const size_t block = wn_gguf_block_bytes(type), bytes = (size_t)blocks * block;
    uint8_t *data = malloc(bytes + 1), *p = data + 1; /* an odd address */
    assert_non_null(data);
    for (size_t b = 0; b < (size_t)blocks; b++) packed_block(type, p + b * block, 5, b);
    const uint32_t most = 0x7f7fffff;
    const uint16_t most16 = type == WN_GGUF_BF16 ? 0xff7f : 0xfbff;
    memcpy(p, type == WN_GGUF_F32 ? (const void *)&most : (const void *)&most16, (size_t)kinds[k].bytes);
    assert_int_equal(wn_finite_scan(type, p, bytes), -1);
    assert_int_equal(wn_finite_scan(type, p, 0), -1);
    for (int place = 0; place < kinds[k].count; place++) {
      for (int64_t b = 0; b < blocks; b += b < 3 ? 1 : 1249) {
        for (int v = 0; v < 3; v++) {
          uint8_t kept[4], *at = p + (size_t)b * block + kinds[k].places[place];
          memcpy(kept, at, (size_t)kinds[k].bytes);
          put(type, at, bad[v]);
          assert_int_equal(wn_finite_scan(type, p, bytes), b * weights);
          memcpy(at, kept, (size_t)kinds[k].bytes);
        }
      }
    }
    assert_int_equal(wn_finite_scan(type, p, bytes), -1);
    free(data);
  }
}

struct rewrite {
  const wn_gguf *file;
  wn_gguf_tensor tensors[32];
  int chosen;
  int place;
};

static wn_status produce(void *user, int i, void *out, size_t bytes) {
  const struct rewrite *r = user;
  const wn_gguf_tensor *from = wn_gguf_tensor_at(r->file, i), *to = &r->tensors[i];
  const size_t block = wn_gguf_block_bytes(to->type);
  if (i != r->chosen) {
    memcpy(out, from->data, bytes);
    return WN_OK;
  }
  for (size_t at = 0; at < bytes; at += block) packed_block(to->type, (uint8_t *)out + at, 7, at / block);
  if (r->place >= 0) put(to->type, (uint8_t *)out + 3 * block + r->place, NAN);
  return WN_OK;
}

/* A model of width 256 whose tensor `name` has this type. Its fourth block has a NaN at byte `place` (-1: none). */
static void make_file(const char *out, const char *name, wn_gguf_type type, int place) {
  struct rewrite r = {.chosen = -1, .place = place};
  wn_gguf *file;
  wn_gguf_values *values;
  assert_ok(ctx, wn_gguf_open(ctx, path_in(folder, "plain.gguf"), &file));
  assert_ok(ctx, wn_gguf_values_create(ctx, &values));
  for (int i = 0; i < wn_gguf_value_count(file); i++) wn_gguf_values_copy(values, wn_gguf_value_at(file, i));
  r.file = file;
  assert_true(wn_gguf_tensor_count(file) <= 32);
  for (int i = 0; i < wn_gguf_tensor_count(file); i++) {
    r.tensors[i] = *wn_gguf_tensor_at(file, i);
    if (strcmp(r.tensors[i].name, name) != 0) continue;
    r.chosen = i;
    r.tensors[i].type = type;
  }
  assert_true(r.chosen >= 0);
  assert_ok(ctx, wn_gguf_write(ctx, out, values, r.tensors, wn_gguf_tensor_count(file), produce, &r));
  wn_gguf_values_destroy(values);
  wn_gguf_close(file);
}

static void make_plain(void) {
  wn_model_config c;
  wn_model *model;
  wn_model_config_init(&c);
  c.vocab_size = 8, c.context = 16, c.layers = 1, c.width = 256, c.heads = 4, c.ffn_width = 256;
  c.position = WN_POS_ROPE;
  assert_ok(ctx, wn_model_create(ctx, &c, 1, &model));
  assert_ok(ctx, wn_model_save(ctx, model, NULL, path_in(folder, "seed")));
  wn_model_destroy(model);
  const wn_convert_options o = {.size = sizeof o, .to = WN_CONVERT_GGUF, .overwrite = true};
  assert_ok(ctx, wn_model_convert(ctx, path_in(folder, "seed"), path_in(folder, "plain.gguf"), &o, NULL));
}

static wn_status load(const char *path, wn_check check, bool as_float) {
  const wn_model_load_options options = {.size = sizeof options, .check_tensors = check, .as_float = as_float};
  wn_model *model = NULL;
  const wn_status status = wn_model_load(ctx, path, &options, &model);
  assert_true((status == WN_OK) == (model != NULL));
  wn_model_destroy(model);
  return status;
}

static void files(void **state) {
  (void)state;
  static const char *const tensors[] = {"token_embd.weight", "blk.0.attn_k.weight", "output.weight"};
  make_plain();
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    const char *name = tensors[k % 3], *path = path_in(folder, "bad.gguf");
    wn_convert_options o = {.size = sizeof o, .to = WN_CONVERT_WINNOW_GGUF, .overwrite = true};
    wn_model *model;
    make_file(path, name, kinds[k].type, -1);
    assert_ok(ctx, load(path, WN_CHECK_YES, false));
    make_file(path, name, kinds[k].type, kinds[k].places[kinds[k].count - 1]);
    for (int as_float = 0; as_float < 2; as_float++) {
      assert_refused(ctx, load(path, WN_CHECK_AUTO, as_float), WN_ERR_FORMAT, "bad.gguf: tensor ");
      assert_non_null(strstr(wn_context_error(ctx), name));
      assert_non_null(strstr(wn_context_error(ctx), "not finite"));
      assert_refused(ctx, load(path, WN_CHECK_YES, as_float), WN_ERR_FORMAT, name);
      assert_ok(ctx, load(path, WN_CHECK_NO, as_float));
    }
    assert_refused(ctx, wn_model_load(ctx, path, NULL, &model), WN_ERR_FORMAT, name);
    const char *out = path_in(folder, "out.gguf");
    assert_refused(ctx, wn_model_convert(ctx, path, out, &o, NULL), WN_ERR_FORMAT, name);
    o.to = WN_CONVERT_HF;
    assert_refused(ctx, wn_model_convert(ctx, path, path_in(folder, "out"), &o, NULL), WN_ERR_FORMAT, name);
    o.check_tensors = WN_CHECK_NO, o.to = WN_CONVERT_WINNOW_GGUF;
    assert_ok(ctx, wn_model_convert(ctx, path, out, &o, NULL));
  }
  const wn_model_load_options wrong = {.size = sizeof wrong, .check_tensors = (wn_check)3};
  wn_model *model;
  assert_refused(ctx, wn_model_load(ctx, path_in(folder, "plain.gguf"), &wrong, &model), WN_ERR_ARGUMENT, "3");
}

/* Types of 16 bits, in other programs' folders. */
static void folders(void **state) {
  (void)state;
  static const wn_gguf_type types[] = {WN_GGUF_F16, WN_GGUF_BF16};
  for (int i = 0; i < 2; i++) {
    wn_convert_options o = {.size = sizeof o, .to = WN_CONVERT_HF, .typed = true, .type = types[i], .overwrite = true};
    make_plain();
    assert_ok(ctx, wn_model_convert(ctx, path_in(folder, "plain.gguf"), path_in(folder, "hf"), &o, NULL));
    assert_ok(ctx, load(path_in(folder, "hf"), WN_CHECK_AUTO, false));
    char path[1024];
    snprintf(path, sizeof path, "%s", path_in(folder, "hf/model.safetensors"));
    wn_safetensors *file;
    assert_ok(ctx, wn_safetensors_open(ctx, path, &file));
    const char *name = "model.layers.0.mlp.down_proj.weight";
    const wn_safetensors_entry *e = wn_safetensors_find(file, name);
    assert_non_null(e);
    wn_safetensors_entry entries[64];
    const int count = wn_safetensors_count(file);
    assert_true(count <= 64);
    uint8_t *copy = malloc(e->bytes); /* rewrites the file with this tensor changed */
    assert_non_null(copy);
    memcpy(copy, e->data, e->bytes);
    put(types[i], copy + 100, -INFINITY);
    for (int k = 0; k < count; k++) {
      entries[k] = *wn_safetensors_at(file, k);
      if (!strcmp(entries[k].name, name)) entries[k].data = copy;
    }
    assert_ok(ctx, wn_safetensors_write(ctx, path, entries, count, (const char *const[]){"format", "pt", NULL}));
    free(copy);
    wn_safetensors_close(file);
    assert_refused(ctx, load(path_in(folder, "hf"), WN_CHECK_AUTO, false), WN_ERR_FORMAT, name);
    assert_non_null(strstr(wn_context_error(ctx), "model.safetensors"));
    assert_non_null(strstr(wn_context_error(ctx), "weight 50"));
    assert_ok(ctx, load(path_in(folder, "hf"), WN_CHECK_NO, false));
  }
}

/* If such values were let through, the loss reports it. */
static void evaluation(void **state) {
  (void)state;
  make_plain();
  make_file(path_in(folder, "bad.gguf"), "blk.0.attn_k.weight", WN_GGUF_Q8_0, 0);
  const wn_model_load_options options = {.size = sizeof options, .check_tensors = WN_CHECK_NO};
  wn_model *model;
  wn_recipe recipe;
  wn_data_source *source;
  wn_eval_result result;
  assert_ok(ctx, wn_model_load(ctx, path_in(folder, "bad.gguf"), &options, &model));
  wn_recipe_init(&recipe);
  const int32_t tokens[33] = {1, 2, 3, 4, 5};
  assert_ok(ctx, wn_token_file_write(ctx, path_in(folder, "val.bin"), "llmc", 8, tokens, 33));
  recipe.data.kind = WN_DATA_TOKENS;
  snprintf(recipe.data.val, sizeof recipe.data.val, "%s", path_in(folder, "val.bin"));
  assert_ok(ctx, wn_data_source_create(ctx, &recipe.data, "val", 16, 8, &source));
  const wn_eval_options o = {.size = sizeof o, .max_batches = 1};
  assert_refused(ctx, wn_eval(ctx, model, source, &o, &result), WN_ERR_DIVERGED, "not a number");
  wn_data_source_destroy(source);
  wn_generate_options text;
  wn_generate_options_init(&text, sizeof text);
  text.prompt = tokens, text.prompt_count = 5, text.max_tokens = 2;
  assert_refused(ctx, wn_generate(ctx, model, &text, NULL), WN_ERR_DIVERGED, "the model's logit 0 is");
  wn_model_destroy(model);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(scan), cmocka_unit_test(files), cmocka_unit_test(folders),
                                     cmocka_unit_test(evaluation)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
