/* /v1/embeddings: the library's numbers, as a list and as base64; refusals. */
#include "serve/place.h"

#include "winnow/embed.h"

enum { LONG = 700, WIDTH = 512 };

static int64_t embed_alone(const struct place *p, const char *text, wn_pooling pooling, float *out) {
  int32_t ids[LONG];
  int64_t n = 0;
  for (const char *c = text; *c; c++) ids[n++] = (unsigned char)*c;
  wn_session *s;
  const wn_embed_options o = {.size = sizeof o, .pooling = pooling};
  OK(p->own, wn_session_create(p->own, p->same, WN_OPTIONS(wn_session_options, .capacity = n), &s));
  OK(p->own, wn_session_embed(p->own, s, ids, n, &o, out));
  wn_session_destroy(s);
  return wn_model_config_get(p->same)->width;
}

static unsigned digit(char c) {
  return c >= 'a'   ? (unsigned)(c - 'a') + 26
         : c >= 'A' ? (unsigned)(c - 'A')
         : c >= '0' ? (unsigned)(c - '0') + 52
         : c == '+' ? 62
                    : 63;
}

/* The i-th embedding of an answer. Returns its length. */
static int64_t numbers_of(const char *answer, int i, float *out) {
  if (status_of(answer) != 200) fail_msg("%.300s", answer);
  json_t *j = json_of(answer), *one = json_array_get(json_object_get(j, "data"), (size_t)i),
         *x = json_object_get(one, "embedding");
  assert_int_equal(json_integer_value(json_object_get(one, "index")), i);
  int64_t n = (int64_t)json_array_size(x);
  for (int64_t k = 0; k < n; k++) out[k] = (float)json_real_value(json_array_get(x, (size_t)k));
  if (json_is_string(x)) {
    const char *text = json_string_value(x);
    const size_t length = strlen(text);
    unsigned char *to = (unsigned char *)out;
    size_t bytes = 0;
    assert_int_equal(length % 4, 0);
    for (size_t k = 0; k < length; k += 4) {
      const unsigned v = digit(text[k]) << 18 | digit(text[k + 1]) << 12 |
                         (text[k + 2] == '=' ? 0 : digit(text[k + 2]) << 6) |
                         (text[k + 3] == '=' ? 0 : digit(text[k + 3]));
      to[bytes++] = (unsigned char)(v >> 16);
      if (text[k + 2] != '=') to[bytes++] = (unsigned char)(v >> 8);
      if (text[k + 3] != '=') to[bytes++] = (unsigned char)v;
    }
    assert_int_equal(bytes % sizeof(float), 0);
    n = (int64_t)(bytes / sizeof(float));
  }
  json_decref(j);
  return n;
}

static void test_embeddings(void **state) {
  (void)state;
  struct place p;
  float expected[WIDTH], found[WIDTH];
  char text[601], *body;
  open_place_of(&p, LONG, NULL);
  for (int i = 0; i < 600; i++) text[i] = (char)('a' + i * 7 % 26);
  text[600] = 0;
  for (int pooling = 0; pooling < WN_POOLING_COUNT; pooling++)
    for (int base64 = 0; base64 < 2; base64++) { /* in several pieces, among other requests */
      assert_true(asprintf(&body,
                           "{\"input\":[\"%s\",\"water\",[104,105]],\"model\":\"m\",\"encoding_format\":\"%s\"%s}",
                           text, base64 ? "base64" : "float", pooling ? ",\"pooling\":\"last\"" : "") > 0);
      char *answer = post(p.port, "/v1/embeddings", body);
      const char *texts[] = {text, "water", "hi"};
      for (int i = 0; i < 3; i++) {
        const int64_t C = embed_alone(&p, texts[i], (wn_pooling)pooling, expected);
        assert_int_equal(numbers_of(answer, i, found), C);
        assert_memory_equal(expected, found, (size_t)C * sizeof *found);
      }
      assert_non_null(strstr(answer, "\"usage\":{\"prompt_tokens\":607,\"total_tokens\":607}"));
      free(answer), free(body);
    }
  /* The first numbers only, normalised again. */
  char *answer = post(p.port, "/v1/embeddings", "{\"input\":\"water\",\"dimensions\":5}");
  embed_alone(&p, "water", WN_POOLING_MEAN, expected);
  assert_int_equal(numbers_of(answer, 0, found), 5);
  double square = 0, one = 0;
  for (int i = 0; i < 5; i++)
    square += (double)expected[i] * (double)expected[i], one += (double)found[i] * (double)found[i];
  for (int i = 0; i < 5; i++) assert_true(fabs((double)found[i] - (double)expected[i] / sqrt(square)) < 1e-6);
  assert_true(fabs(one - 1) < 1e-6);
  free(answer);
  wait_for(p.port, "requests", 0);
  assert_int_equal(slot_number(p.port, "cache_bytes"), 0);
  close_place(&p);
}

static void test_refusals(void **state) {
  (void)state;
  static const struct {
    const char *body, *part;
  } rows[] = {{"{}", "input: missing"},
              {"{\"input\":7}", "input: expected a text"},

              {"{\"input\":[1,256]}", "input: element 1 is no token"},
              {"{\"input\":[\"a\",[]]}", "input: there are no tokens"},
              {"{\"input\":\"a\",\"encoding_format\":\"hex\"}", "encoding_format: expected"},
              {"{\"input\":\"a\",\"pooling\":\"max\"}", "pooling: expected"},
              {"{\"input\":\"a\",\"dimensions\":0}", "dimensions: expected"},
              {"{\"input\":\"a\",\"dimensions\":100000}", "dimensions: expected"},
              {"{\"input\":\"a\",\"prompt\":\"b\"}", "prompt: this field is not known to /v1/embeddings"},
              {"{\"input\":\"0123456789012345678901234567890123456789\"}", "has 40 tokens, the context has 30"}};
  struct place p;
  open_place_of(&p, 30, NULL);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *answer = post(p.port, "/v1/embeddings", rows[i].body);
    if (status_of(answer) != 400 || !strstr(answer, rows[i].part))
      fail_msg("%s: expected \"%s\", found %s", rows[i].body, rows[i].part, answer);
    free(answer);
  }
  close_place(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_embeddings), cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
