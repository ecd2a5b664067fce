/* A GGUF model in parts, as llama-gguf-split writes them, is the model that the whole file is. Parts that are missing,
 * in another order, of another model or with a tensor too many or too few are refused in one line. */
#include "folder.h"

#include "winnow/convert.h"
#include "winnow/gguf.h"
#include "winnow/model.h"

enum { PARTS = 3 };

static const char *whole(void) {
  return WN_TEST_DIR "/golden/hf/llama3.gguf";
}

/* What a part says of itself, and which tensors it has. */
struct part {
  uint32_t no, count, tensors;
  bool metadata;
  int first, end;
  const char *lacks; /* a key that is left out, or NULL */
};

static wn_status produce(void *user, int i, void *out, size_t bytes) {
  memcpy(out, ((const wn_gguf_tensor *)user)[i].data, bytes);
  return WN_OK;
}

static void put_number(wn_gguf_values *values, const struct part *p, const char *key, uint32_t value) {
  if (!p->lacks || strcmp(p->lacks, key) != 0) wn_gguf_values_put_uint(values, key, value);
}

static void put_part(const wn_gguf *from, const char *name, const struct part *p) {
  wn_gguf_values *values;
  wn_gguf_tensor tensors[64];
  const int count = p->end - p->first;
  assert_ok(ctx, wn_gguf_values_create(ctx, &values));
  for (int i = 0; p->metadata && i < wn_gguf_value_count(from); i++)
    wn_gguf_values_copy(values, wn_gguf_value_at(from, i));
  put_number(values, p, "split.no", p->no);
  put_number(values, p, "split.count", p->count);
  put_number(values, p, "split.tensors.count", p->tensors);
  for (int i = 0; i < count; i++) tensors[i] = *wn_gguf_tensor_at(from, p->first + i);
  assert_ok(ctx, wn_gguf_write(ctx, path_in(folder, name), values, tensors, count, produce, tensors));
  wn_gguf_values_destroy(values);
}

static const char *name_of(int no) {
  static char name[64];
  snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", no + 1, PARTS);
  return name;
}

/* Part `no` of the golden: the first has 5 tensors, the second 2, the third the others. */
static struct part good(const wn_gguf *from, int no) {
  const int ends[PARTS + 1] = {0, 5, 7, wn_gguf_tensor_count(from)};
  return (struct part){.no = (uint32_t)no,
                       .count = PARTS,
                       .tensors = (uint32_t)ends[PARTS],
                       .metadata = no == 0,
                       .first = ends[no],
                       .end = ends[no + 1]};
}

static wn_gguf *put_all(void) {
  wn_gguf *from;
  assert_ok(ctx, wn_gguf_open(ctx, whole(), &from));
  for (int no = 0; no < PARTS; no++) {
    const struct part p = good(from, no);
    put_part(from, name_of(no), &p);
  }
  return from;
}

static void same(const char *path) {
  wn_model *a, *b;
  assert_ok(ctx, wn_model_load(ctx, whole(), WN_OPTIONS(wn_model_load_options, .as_float = true), &a));
  assert_ok(ctx, wn_model_load(ctx, path, WN_OPTIONS(wn_model_load_options, .as_float = true), &b));
  assert_int_equal(wn_model_tensor_count(a), wn_model_tensor_count(b));
  for (int i = 0; i < wn_model_tensor_count(a); i++) {
    wn_safetensors_entry x, y;
    assert_ok(ctx, wn_model_tensor_at(a, i, &x));
    assert_ok(ctx, wn_model_tensor_at(b, i, &y));
    assert_string_equal(x.name, y.name);
    assert_int_equal(x.bytes, y.bytes);
    assert_memory_equal(x.data, y.data, x.bytes);
  }
  wn_model_destroy(a);
  wn_model_destroy(b);
}

/* The parts are the whole, loaded as floats or packed, and converted into one file. */
static void parts(void **state) {
  (void)state;
  wn_model *a, *b;
  float x[4 * 48], y[4 * 48];
  const int32_t tokens[4] = {3, 1, 4, 1};
  const wn_convert_options to = {.size = sizeof to, .to = WN_CONVERT_GGUF, .overwrite = true};
  wn_gguf_close(put_all());
  const char *first = path_in(folder, name_of(0));
  same(first);
  assert_ok(ctx, wn_model_load(ctx, whole(), NULL, &a));
  assert_ok(ctx, wn_model_load(ctx, first, NULL, &b));
  assert_int_equal(wn_model_config_get(b)->vocab_size, 48);
  assert_ok(ctx, wn_model_logits(ctx, a, tokens, 1, 4, NULL, x));
  assert_ok(ctx, wn_model_logits(ctx, b, tokens, 1, 4, NULL, y));
  assert_memory_equal(x, y, sizeof x);
  wn_model_destroy(a);
  wn_model_destroy(b);
  assert_ok(ctx, wn_model_convert(ctx, first, path_in(folder, "one.gguf"), &to, NULL));
  same(path_in(folder, "one.gguf"));
  wn_gguf *one;
  assert_ok(ctx, wn_gguf_open(ctx, path_in(folder, "one.gguf"), &one));
  assert_null(wn_gguf_value_find(one, "split.count"));
  wn_gguf_close(one);
}

static void refused(const char *name, wn_status expected, const char *message) {
  wn_model *model = NULL;
  assert_refused(ctx, wn_model_load(ctx, path_in(folder, name), NULL, &model), expected, message);
  assert_null(model);
  assert_null(strchr(wn_context_error(ctx), '\n'));
}

static void mistakes(void **state) {
  (void)state;
  wn_gguf *from = put_all();
  const int all = wn_gguf_tensor_count(from);
  char first[64];
  struct part p;
  snprintf(first, sizeof first, "%s", name_of(0));

  refused(name_of(1), WN_ERR_ARGUMENT,
          "part 2 of 3 of a model; expected the first, whose name ends in -00001-of-00003.gguf");
  p = good(from, 0);
  put_part(from, "renamed.gguf", &p);
  refused("renamed.gguf", WN_ERR_ARGUMENT, "its name must end in -00001-of-00003.gguf");

  assert_int_equal(unlink(path_in(folder, name_of(2))), 0);
  refused(first, WN_ERR_IO, "m-00003-of-00003.gguf: part 3 of 3 of the model is missing");
  p = good(from, 1);
  put_part(from, name_of(2), &p); /* another order */
  refused(first, WN_ERR_FORMAT, "m-00003-of-00003.gguf: it is part 2 of 3");
  p = good(from, 2);
  p.count = 4;
  put_part(from, name_of(2), &p); /* of another split */
  refused(first, WN_ERR_FORMAT, "m-00003-of-00003.gguf: it is part 3 of 4");
  p = good(from, 2);
  p.tensors--;
  put_part(from, name_of(2), &p);
  refused(first, WN_ERR_FORMAT, "needs part 3 of 3 with");
  p = good(from, 2);
  p.first--;
  put_part(from, name_of(2), &p);
  refused(first, WN_ERR_FORMAT, "the 3 parts hold");
  p = good(from, 2);
  p.first--, p.end--; /* as many tensors, but one twice and one missing */
  put_part(from, name_of(2), &p);
  refused(first, WN_ERR_FORMAT, "m-00002-of-00003.gguf and in");
  p = good(from, 2);
  p.end--;
  put_part(from, name_of(2), &p);
  refused(first, WN_ERR_FORMAT, "the 3 parts hold");
  static const char *const keys[] = {"split.no", "split.count", "split.tensors.count"};
  for (int i = 0; i < 3; i++) {
    p = good(from, 2);
    p.lacks = keys[i];
    put_part(from, name_of(2), &p);
    refused(first, WN_ERR_FORMAT, i == 1 ? "it is part 1 of 1" : keys[i]);
  }
  put_file(path_in(folder, name_of(2)), "GGUF", 4);
  refused(first, WN_ERR_FORMAT, "m-00003-of-00003.gguf: truncated");
  p = good(from, 2);
  put_part(from, name_of(2), &p);
  same(path_in(folder, first));

  p = good(from, 0);
  p.count = 1 << 30; /* more parts than anything can be */
  put_part(from, first, &p);
  refused(first, WN_ERR_FORMAT, "\"split.count\" is missing, or no whole number from 0 to");
  p = good(from, 0);
  p.no = 7;
  put_part(from, first, &p);
  refused(first, WN_ERR_FORMAT, "\"split.no\" is missing, or no whole number from 0 to 2");
  p = (struct part){.count = 1, .metadata = true, .tensors = (uint32_t)all, .end = all};
  put_part(from, "lone.gguf", &p); /* split into one */
  same(path_in(folder, "lone.gguf"));
  wn_gguf_close(from);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(parts), cmocka_unit_test(mistakes)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
