/* response_format: answers are JSON, or valid under a schema. They equal the library's to the bit, also when streamed.
 * Errors in a format are named. */
#include "model/models.h"

#include <jansson.h>

#include "report/ask.h"
#include "winnow/generate.h"
#include "winnow/serve.h"

enum { CONTEXT = 300 };
#define SCHEMA                                                                                                         \
  "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":4},\"b\":{\"type\":\"array\","        \
  "\"items\":{"                                                                                                        \
  "\"enum\":[1,\"x\",null]},\"maxItems\":3}},\"required\":[\"a\",\"b\"],\"additionalProperties\":false}"

struct place {
  wn_context *ctx, *own;
  wn_model *model, *same;
  wn_tokenizer *tok;
  wn_server *server;
  int port;
};

static wn_model *bytes_model(wn_context *ctx) {
  const struct model_case k = {.position = WN_POS_ROPE, .ffn = WN_FFN_SWIGLU, .kv_heads = 2, .qk_norm = true};
  wn_model_config c = model_case_config(&k);
  c.vocab_size = 256;
  c.context = CONTEXT;
  return model_of(ctx, &c, WN_F32);
}

static int open_place(void **state) {
  static struct place p;
  const wn_server_options o = {.size = sizeof o};
  p.ctx = context_of("cpu", 1);
  p.own = context_of("cpu", 1);
  p.model = bytes_model(p.ctx);
  p.same = bytes_model(p.own);
  OK(p.ctx, wn_tokenizer_load(p.ctx, "bytes", &p.tok));
  OK(p.ctx, wn_server_start(p.ctx, p.model, p.tok, &o, &p.server));
  p.port = wn_server_port(p.server);
  *state = &p;
  return 0;
}

static int close_place(void **state) {
  struct place *p = *state;
  wn_server_stop(p->server);
  wn_tokenizer_destroy(p->tok);
  wn_model_destroy(p->model);
  wn_model_destroy(p->same);
  wn_context_destroy(p->ctx);
  wn_context_destroy(p->own);
  return 0;
}

/* The answer to a completion request with these fields. */
static char *post(const struct place *p, const char *fields) {
  char *body = NULL, *request = NULL;
  assert_true(asprintf(&body, "{\"prompt\":\"The water\",%s}", fields) > 0);
  assert_true(asprintf(&request, "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
                       strlen(body), body) > 0);
  char *answer = ask(p->port, request);
  free(body);
  free(request);
  return answer;
}

struct written {
  char text[4096];
  size_t bytes;
};
static bool on_piece(void *user, const wn_generate_piece *piece) {
  struct written *w = user;
  memcpy(w->text + w->bytes, piece->text, piece->bytes);
  w->text[w->bytes += piece->bytes] = 0;
  return true;
}

/* Generates the same with the library under that schema; NULL: any object. */
static void write_alone(const struct place *p, const char *schema, uint64_t seed, struct written *out) {
  wn_generate_options o;
  wn_constraint *c;
  wn_generate_options_init(&o, sizeof o);
  OK(p->own, wn_constraint_create_json(p->own, p->tok, schema, schema ? strlen(schema) : 0, &c));
  o.text = "The water";
  o.bytes = strlen(o.text);
  o.tok = p->tok;
  o.sampling = (wn_sampling){.temperature = 2, .top_p = 1, .seed = seed};
  o.max_tokens = 200;
  o.cache = WN_CACHE_FLOAT;
  o.constraint = c;
  o.piece = on_piece;
  o.user = out;
  out->bytes = 0;
  out->text[0] = 0;
  OK(p->own, wn_generate(p->own, p->same, &o, NULL));
  wn_constraint_destroy(c);
}

static void test_answers(void **state) {
  const struct place *p = *state;
  static const char *const formats[] = {
      "{\"type\":\"json_object\"}",
      "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"strict\":true,\"schema\":" SCHEMA "}}"};
  for (int k = 0; k < 2; k++) {
    char fields[1024];
    snprintf(fields, sizeof fields, "\"max_tokens\":200,\"temperature\":2,\"seed\":%d,\"n\":3,\"response_format\":%s",
             5, formats[k]);
    char *answer = post(p, fields);
    json_t *j = json_loads(ask_body(answer), 0, NULL), *choices = json_object_get(j, "choices");
    if (json_array_size(choices) != 3) fail_msg("%s", answer);
    for (size_t i = 0; i < 3; i++) { /* each choice has its own state */
      struct written expected;
      const json_t *choice = json_array_get(choices, i);
      const char *text = json_string_value(json_object_get(choice, "text"));
      write_alone(p, k ? SCHEMA : NULL, 5 + i, &expected);
      assert_string_equal(text, expected.text);
      json_t *value = json_loads(text, 0, NULL);
      const bool whole = !strcmp(json_string_value(json_object_get(choice, "finish_reason")), "stop");
      assert_true(whole == (value != NULL));
      if (k) assert_true(whole && json_object_size(value) == 2 && json_array_size(json_object_get(value, "b")) <= 3);
      json_decref(value);
    }
    json_decref(j);
    free(answer);
  }
}

static void test_stream(void **state) {
  const struct place *p = *state;
  struct written expected;
  char joined[4096] = "";
  char *stream =
      post(p, "\"max_tokens\":200,\"temperature\":2,\"seed\":9,\"stream\":true,\"response_format\":{\"type\":"
              "\"json_schema\",\"json_schema\":{\"schema\":" SCHEMA "}}");
  for (const char *line = ask_body(stream); (line = strstr(line, "data: {")); line += 6) {
    json_t *j = json_loads(line + 6, JSON_DISABLE_EOF_CHECK, NULL);
    const char *text = json_string_value(json_object_get(json_array_get(json_object_get(j, "choices"), 0), "text"));
    if (text) strcat(joined, text);
    json_decref(j);
  }
  write_alone(p, SCHEMA, 9, &expected);
  assert_string_equal(joined, expected.text);
  free(stream);
}

/* "text" is no constraint. A text that is cut off ends by its length. */
static void test_others(void **state) {
  const struct place *p = *state;
  char *a = post(p, "\"max_tokens\":20,\"seed\":1"),
       *b = post(p, "\"max_tokens\":20,\"seed\":1,\"response_format\":{\"type\":\"text\"}");
  json_t *x = json_loads(ask_body(a), JSON_ALLOW_NUL, NULL), *y = json_loads(ask_body(b), JSON_ALLOW_NUL, NULL);
  assert_non_null(json_object_get(x, "choices"));
  assert_true(json_equal(json_object_get(x, "choices"), json_object_get(y, "choices")));
  free(a), free(b), json_decref(x), json_decref(y);
  a = post(p,
           "\"max_tokens\":3,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":" SCHEMA "}}");
  assert_non_null(strstr(a, "\"finish_reason\":\"length\""));
  free(a);
}

static void test_refused(void **state) {
  const struct place *p = *state;
  static const struct {
    const char *format, *says;
  } rows[] = {
      {"7", "response_format.type: expected"},
      {"{}", "response_format.type: expected"},
      {"{\"type\":\"xml\"}", "response_format.type: expected"},
      {"{\"type\":\"json_object\",\"schema\":7}", "response_format.schema: expected a JSON schema"},
      {"{\"type\":\"json_object\",\"schema\":{\"not\":{}}}", "schema #: \\\"not\\\" is not served"},
      {"{\"type\":\"text\",\"schema\":{}}", "response_format: \\\"schema\\\" is not known"},
      {"{\"type\":\"json_schema\"}", "response_format.json_schema: expected an object"},
      {"{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\"}}", "response_format.json_schema.schema: expected"},
      {"{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},\"strict\":1}}", "strict, true or false"},
      {"{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},\"x\":1}}", "json_schema: \\\"x\\\" is not known"},
      {"{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"properties\":{\"age\":{\"not\":{}}}}}}",
       "schema #/properties/age: \\\"not\\\" is not served"},
      {"{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"null\",\"const\":1}}}", "no value fits"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char fields[512];
    snprintf(fields, sizeof fields, "\"response_format\":%s", rows[i].format);
    char *answer = post(p, fields);
    if (!strstr(answer, " 400 ") || !strstr(answer, rows[i].says) || !strstr(answer, "\"param\":\"response_format\""))
      fail_msg("%s: expected %s, found %s", rows[i].format, rows[i].says, answer);
    free(answer);
  }
}

/* A schema of n nested objects, the innermost with a property name of `name` bytes. */
static char *format_of(int n, size_t name) {
  char *long_name = calloc(1, name + 1), *text = NULL;
  memset(long_name, 'x', name);
  json_t *schema = json_pack("{s:{s:{s:s}}}", "properties", long_name, "type", "null");
  for (int i = 1; i < n; i++) schema = json_pack("{s:{s:o}}", "properties", "a", schema);
  char *dumped = json_dumps(schema, JSON_COMPACT);
  assert_true(
      asprintf(&text, "\"max_tokens\":1,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":%s}}",
               dumped) > 0);
  json_decref(schema);
  free(dumped), free(long_name);
  return text;
}

/* The limits on schemas are those in docs/json.md, not the server's own. */
static void test_limits_of_schemas(void **state) {
  const struct place *p = *state;
  static const struct {
    int objects;
    size_t name;
    const char *says; /* NULL: accepted */
  } rows[] = {{128, 1, NULL}, {129, 1, "nested deeper than"}, {1, 250 << 10, NULL}, {1, 256 << 10, "at most 262144"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *fields = format_of(rows[i].objects, rows[i].name), *answer = post(p, fields);
    if (rows[i].says ? !strstr(answer, " 400 ") || !strstr(answer, rows[i].says) : !strstr(answer, " 200 "))
      fail_msg("%d objects, a name of %zu bytes: %.300s", rows[i].objects, rows[i].name, answer);
    free(fields), free(answer);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers), cmocka_unit_test(test_stream),
                                     cmocka_unit_test(test_others), cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_limits_of_schemas)};
  return cmocka_run_group_tests(tests, open_place, close_place);
}
