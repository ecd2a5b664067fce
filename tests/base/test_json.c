/* JSON: positions in errors, refusals, numbers that survive a round trip, changes by key. */
#include "support.h"

#include <float.h>
#include <math.h>

#include "base/alloc.h"
#include "base/fields.h"

static wn_context *ctx;

static wn_status parse(const char *text, json_t **out) {
  return wn_json_load_text(ctx, WN_JSON_CONFIG, "file.json", text, strlen(text), out);
}

static void errors_name_file_line_and_column(void **state) {
  (void)state;
  json_t *j = NULL;
  assert_refused(ctx, parse("{\n  \"a\": 1,\n  \"b\": }\n", &j), WN_ERR_FORMAT, "file.json:3:8: ");
  assert_null(j);
  assert_refused(ctx, parse("", &j), WN_ERR_FORMAT, "file.json:1:0: ");
  assert_refused(ctx, parse("{\"a\": 1} x", &j), WN_ERR_FORMAT, "file.json:1:10: end of file expected");
  assert_refused(ctx, parse("{\"a\": 1,\n\"a\": 2}", &j), WN_ERR_FORMAT, "file.json:2:3: duplicate object key");
  assert_refused(ctx, parse("{\"a\": 1e999}", &j), WN_ERR_FORMAT, "file.json:1:");
  assert_refused(ctx, parse("{\"a\": 99999999999999999999}", &j), WN_ERR_FORMAT, "too big integer");
  assert_refused(ctx, parse("{\"a\": NaN}", &j), WN_ERR_FORMAT, "file.json:1:");
  assert_refused(ctx, parse("{\"a\": \"\xff\"}", &j), WN_ERR_FORMAT, "file.json:1:7: unable to decode byte 0xff");
  assert_refused(ctx, parse("{\"a\": \"\\u0000\"}", &j), WN_ERR_FORMAT, "u0000");
  assert_refused(ctx, parse("{\"a\": \"\\ud800\"}", &j), WN_ERR_FORMAT, "file.json:1:");
  assert_refused(ctx, wn_json_load_text(ctx, WN_JSON_CONFIG, "file.json", "{\"a\"\0: 1}", 9, &j), WN_ERR_FORMAT,
                 "file.json:1:");
  assert_null(strchr(wn_context_error(ctx), '\n'));
}

static void depth_is_bounded(void **state) {
  (void)state;
  enum { N = 30000 };
  char *text = test_malloc(N);
  memset(text, '[', N);
  json_t *j = NULL;
  assert_refused(ctx, wn_json_load_text(ctx, WN_JSON_CONFIG, "deep", text, N, &j), WN_ERR_FORMAT, "deep:1:");
  test_free(text);
}

static void files_that_cannot_be_read(void **state) {
  (void)state;
  char folder[512], path[600];
  json_t *j = NULL;
  make_folder(folder);
  assert_refused(ctx, wn_json_load_file(ctx, WN_JSON_CONFIG, folder, &j), WN_ERR_IO, "it is a folder");
  snprintf(path, sizeof path, "%s/missing.json", folder);
  assert_refused(ctx, wn_json_load_file(ctx, WN_JSON_CONFIG, path, &j), WN_ERR_IO, "missing.json: No such file");
  snprintf(path, sizeof path, "%s/empty.json", folder);
  put_file(path, "", 0);
  assert_refused(ctx, wn_json_load_file(ctx, WN_JSON_CONFIG, path, &j), WN_ERR_FORMAT, "empty.json:1:0");
  snprintf(path, sizeof path, "%s/large.json", folder);
  put_file(path, "", 0);
  assert_int_equal(truncate(path, (off_t)33 << 20), 0);
  assert_refused(ctx, wn_json_load_file(ctx, WN_JSON_CONFIG, path, &j), WN_ERR_FORMAT, "is larger than");
  snprintf(path, sizeof path, "%s/bom.json", folder);
  put_file(path, "\xEF\xBB\xBF{\"a\": 1}", 11);
  assert_ok(ctx, wn_json_load_file(ctx, WN_JSON_CONFIG, path, &j));
  assert_int_equal(json_integer_value(json_object_get(j, "a")), 1);
  json_decref(j);
  remove_folder(folder);
}

static void numbers_and_texts_read_back(void **state) {
  (void)state;
  static const double values[] = {0.1,         1.0 / 3, 1e300, -1e-300, DBL_MAX, DBL_MIN, 5e-324,
                                  DBL_EPSILON, 1e15,    1e16,  0x1p53,  -0.0,    3,       123456.789};
  json_t *j = json_object(), *list = json_array(), *back = NULL;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) json_array_append_new(list, json_real(values[i]));
  json_object_set_new(j, "reals", list);
  json_object_set_new(j, "big", json_integer(INT64_MIN));
  const char *odd = "quote \" backslash \\ newline \n tab \t bell \a delete \x7f gr\xC3\xBC\xC3\x9F \xF0\x9F\x8C\xBE";
  json_object_set_new(j, odd, json_string(odd));
  json_object_set_new(j, "empty", json_object());
  char *text = NULL;
  assert_ok(ctx, wn_json_text(ctx, j, &text));
  assert_ok(ctx, parse(text, &back));
  assert_true(json_equal(j, back));
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    double found = json_real_value(json_array_get(json_object_get(back, "reals"), i));
    assert_memory_equal(&found, &values[i], sizeof found); /* -0.0 as well */
  }
  wn_free(text);
  json_decref(j);
  json_decref(back);
}

static void check_set(const char *before, const char *set, const char *after) {
  json_t *j = NULL, *expected = NULL;
  assert_ok(ctx, parse(before, &j));
  assert_ok(ctx, parse(after, &expected));
  assert_ok(ctx, wn_json_set(ctx, j, set, false));
  if (!json_equal(j, expected)) fail_msg("%s with %s is not %s", before, set, after);
  json_decref(j);
  json_decref(expected);
}

static void changes_by_key(void **state) {
  (void)state;
  check_set("{}", "a=1", "{\"a\": 1}");
  check_set("{}", "a.b.c=1e3", "{\"a\": {\"b\": {\"c\": 1000.0}}}");
  check_set("{\"a\": {\"b\": 1, \"c\": 2}}", "a.b=true", "{\"a\": {\"b\": true, \"c\": 2}}");
  check_set("{}", "path=data/train.bin", "{\"path\": \"data/train.bin\"}");
  check_set("{}", "path=", "{\"path\": \"\"}");
  check_set("{}", "x=a=b", "{\"x\": \"a=b\"}");
  check_set("{}", "x=\"7\"", "{\"x\": \"7\"}");
  check_set("{}", "x={\"y\": 1}", "{\"x\": {\"y\": 1}}");
  check_set("{\"s\": {\"k\": 1}}", "s=false", "{\"s\": {\"k\": 1, \"enabled\": false}}");
  check_set("{\"s\": true}", "s.k=1", "{\"s\": {\"enabled\": true, \"k\": 1}}");
  json_t *j = json_object();
  assert_refused(ctx, wn_json_set(ctx, j, "noequals", false), WN_ERR_ARGUMENT, "key=value");
  assert_refused(ctx, wn_json_set(ctx, j, "=1", false), WN_ERR_ARGUMENT, "key=value");
  assert_refused(ctx, wn_json_set(ctx, j, "a..b=1", false), WN_ERR_ARGUMENT, "is not a key");
  assert_refused(ctx, wn_json_set(ctx, j, "a.=1", false), WN_ERR_ARGUMENT, "is not a key");
  char *deep = test_malloc(120002); /* nested so deeply that freeing it by recursion would overflow the stack */
  for (int i = 0; i < 120000; i += 2) memcpy(deep + i, "a.", 2);
  memcpy(deep + 119999, "=1", 3);
  assert_refused(ctx, wn_json_set(ctx, j, deep, false), WN_ERR_ARGUMENT, "is not a key");
  test_free(deep);
  assert_refused(ctx, wn_json_set(ctx, j, "a=\xff", false), WN_ERR_ARGUMENT, "UTF-8");
  assert_refused(ctx, wn_json_set(ctx, j, "\xff=1", false), WN_ERR_ARGUMENT, "UTF-8");
  json_decref(j);
}

static int setup(void **state) {
  (void)state;
  ctx = make_context();
  return 0;
}
static int teardown(void **state) {
  (void)state;
  wn_context_destroy(ctx);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(errors_name_file_line_and_column),
      cmocka_unit_test(depth_is_bounded),
      cmocka_unit_test(files_that_cannot_be_read),
      cmocka_unit_test(numbers_and_texts_read_back),
      cmocka_unit_test(changes_by_key),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
