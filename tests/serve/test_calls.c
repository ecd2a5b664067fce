/* Calls in answers: each form, cut into pieces of any size, splits as at once; broken calls stay text; streams say what
 * whole answers say. */
#include "serve/place.h"

#include "serve/calls.h"

static const char hermes[] = "tools <tool_call>", mistral[] = "[TOOL_CALLS]",
                  llama[] = "\"parameters\": ", plain[] = "";

/* What an answer is split into, as one text: calls as "{name arguments}", in pieces of `piece` bytes. */
static char *split(const char *template, const char *answer, size_t piece, bool forced) {
  json_t *tools = json_pack("[{s:{s:s}}, {s:{s:s}}]", "function", "name", "f", "function", "name", "g");
  struct wn_calls *c = wn_calls_create(wn_call_form_of(template), tools, 7, forced, false);
  char *out = NULL;
  size_t bytes = 0, calls = 0;
  FILE *file = open_memstream(&out, &bytes);
  const size_t n = strlen(answer);
  struct wn_call_event e;
  for (size_t at = 0; at <= n; at += piece) {
    const size_t some = n - at < piece ? n - at : piece;
    assert_true(wn_calls_push(c, answer + at, some));
    while (wn_calls_next(c, at + piece > n, &e)) {
      if (!e.call) {
        fwrite(e.text, 1, e.bytes, file);
        continue;
      }
      const char *id, *type, *name, *arguments;
      assert_int_equal(json_unpack(e.call, "{s:s, s:s, s:{s:s, s:s}}", "id", &id, "type", &type, "function", "name",
                                   &name, "arguments", &arguments),
                       0);
      assert_int_equal(e.index, calls++);
      assert_int_equal(strlen(id), 9);
      assert_string_equal(type, "function");
      fprintf(file, "{%s %s}", name, arguments);
    }
  }
  fclose(file);
  assert_false(wn_calls_failed(c));
  wn_calls_destroy(c);
  json_decref(tools);
  return out;
}

#define F "{\"name\": \"f\", \"arguments\": {\"a\": [1, -2.5e3, true, null], \"b\": \"}\\\"\\u00e9<\"}}"
#define F_IS "{f {\"a\":[1,-2500.0,true,null],\"b\":\"}\\\"\xc3\xa9<\"}}"
#define P "{\"name\": \"g\", \"parameters\": {}}"

static const struct row {
  const char *template, *answer, *is; /* NULL: the answer, as it is */
} rows[] = {
    {hermes, "<tool_call>\n" F "\n</tool_call>", F_IS},
    {hermes, "Let me see.\n\n<tool_call>" F "</tool_call>\n<tool_call>\n" P "</tool_call> \n",
     "Let me see." F_IS "{g {}}"},
    {hermes, "<tool_call>" F, F_IS}, /* the end closes it */
    {hermes, "<tool_call>" F "</tool_call> done ", F_IS " done"},
    {hermes, F "\n\n" P, F_IS "{g {}}"}, /* the marks are control tokens */
    {hermes, "<tool_call>{\"name\": \"any\", \"arguments\": \"{\\\"x\\\": 1}\"}</tool_call>", "{any {\"x\":1}}"},
    {hermes, "<tool_call>{\"name\": \"f\", \"arguments\": 3}</tool_call>", NULL},
    {hermes, "a <tool_call>{\"name\": \"f\", \"arg", NULL},
    {hermes, " <tool_call>" F " x</tool_call>", NULL},
    {hermes, "<tool_call>" F "</tool_cal", NULL},
    {hermes, "<tool_call>x<tool_call>" F "</tool_call>", "<tool_call>x" F_IS},
    {hermes, "a < b <tool <tool_call", NULL},
    {hermes, " \n a\n ", NULL},
    {hermes, "", NULL},
    {mistral, "[TOOL_CALLS] [" F ", " P "]", F_IS "{g {}}"},
    {mistral, "Yes [TOOL_CALLS][" F "]", "Yes" F_IS},
    {mistral, " [{\"name\": \"f\", \"arguments\": {}, \"id\": \"abc\"}]", "{f {}}"},
    {mistral, "[TOOL_CALLS] [" F ", 3]", NULL},
    {mistral, "[TOOL_CALLS] []", NULL},
    {mistral, "[TOOL] [1, 2]", NULL},
    {llama, P, "{g {}}"},
    {llama, "\n<|python_tag|>" P, "{g {}}"},
    {llama, P "; " F "\n", "{g {}}" F_IS},
    {llama, "{\"type\": \"function\", \"function\": " P "}", "{g {}}"},
    {llama, "<|python_tag|>print(1)", NULL},
    {llama, P " is a call", NULL},
    {llama, "{\"name\": \"unknown\", \"parameters\": {}}", NULL},
    {llama, "{\"name\": \"g\", \"parameters\": {\"a\": 1, \"a\": 2}}", NULL},
    {llama, "{\"name\": \"g\", \"parameters\": {\"a\": 1.2.3}}", NULL},
    {plain, F, F_IS},
    {plain, "Here: " F, NULL},
    {plain, "{\"name\": \"Ann\"}", NULL},
    {plain, "{\"x\": 1}", NULL},
    {plain, "[[1]]", NULL},
    {plain, "{]", NULL},
    {plain, "{\"name\": \"f\", \"arguments\": [}", NULL},
    {"<tool_call><function=", "<tool_call>" F "</tool_call>", NULL},
};

static void test_forms(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const char *is = rows[i].is ? rows[i].is : rows[i].answer;
    for (size_t piece = 1; piece <= strlen(rows[i].answer) + 1; piece++) {
      char *found = split(rows[i].template, rows[i].answer, piece, false);
      if (strcmp(found, is) != 0)
        fail_msg("\"%s\" in %zu bytes: expected %s, found %s", rows[i].answer, piece, is, found);
      free(found);
    }
  }
}

/* Calls that begin in the prompt. */
static void test_forced(void **state) {
  (void)state;
  static const struct row some[] = {
      {hermes, F, F_IS}, {mistral, "[" F "]", F_IS}, {llama, P, "{g {}}"}, {hermes, "{\"na", NULL}};
  for (size_t i = 0; i < sizeof some / sizeof *some; i++)
    for (size_t piece = 1; piece < 50; piece++) {
      char *found = split(some[i].template, some[i].answer, piece, true);
      assert_string_equal(found, some[i].is ? some[i].is : some[i].answer);
      free(found);
    }
}

/* Nothing is held back that can no longer become a call. */
static void test_held(void **state) {
  (void)state;
  static const struct row some[] = {{hermes, "Well", "Well"},
                                    {hermes, "a <", "a"},
                                    {hermes, "a <b", "a <b"},
                                    {hermes, "{\"name\":", ""},
                                    {hermes, "{\"nam\"", "{\"nam\""},
                                    {plain, "{\"x", "{\"x"},
                                    {plain, "[1", "[1"},
                                    {mistral, "[TO", ""},
                                    {mistral, "[To", "[To"},
                                    {llama, P ";", ""},
                                    {llama, P ".", P "."},
                                    {plain, "{\"name\": tx", "{\"name\": tx"},
                                    {hermes, "<tool_call>{\"name\": \"f\", \"arguments\"", ""},
                                    {hermes, "<tool_call>\n<f", "<tool_call>\n<f"}};
  for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
    struct wn_calls *c = wn_calls_create(wn_call_form_of(some[i].template), json_null(), 7, false, false);
    struct wn_call_event e;
    char out[100] = "";
    json_t *tools = NULL;
    if (some[i].template == llama) { /* whole calls without a mark must be known */
      wn_calls_destroy(c);
      tools = json_pack("[{s:{s:s}}]", "function", "name", "g");
      c = wn_calls_create(wn_call_form_of(llama), tools, 7, false, false);
    }
    assert_true(wn_calls_push(c, some[i].answer, strlen(some[i].answer)));
    while (wn_calls_next(c, false, &e)) strncat(out, e.text, e.bytes);
    if (strcmp(out, some[i].is) != 0) fail_msg("%s: expected %s, found %s", some[i].answer, some[i].is, out);
    wn_calls_destroy(c);
    json_decref(tools);
  }
}

/* --- the server, with a tokenizer that has a token for a whole call --- */

#define CALL "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bonn\"}}\n</tool_call>"
enum { TOKEN = 640, END = 2 };
static char folder[512];

static void open_tools(struct place *p, const char *template) {
  json_t *tokenizer = json_load_file(WN_TEST_DIR "/golden/bpe/smollm.json", 0, NULL);
  json_array_append_new(json_object_get(tokenizer, "added_tokens"),
                        json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", TOKEN, "content", CALL, "single_word", 0,
                                  "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 0));
  json_t *config =
      json_pack("{s:s, s:s, s:s}", "bos_token", "<|im_start|>", "eos_token", "<|im_end|>", "chat_template", template);
  make_folder(folder);
  assert_int_equal(json_dump_file(tokenizer, path_in(folder, "tokenizer.json"), 0), 0);
  assert_int_equal(json_dump_file(config, path_in(folder, "tokenizer_config.json"), 0), 0);
  json_decref(config);
  json_decref(tokenizer);
  open_place_with(p, folder, CONTEXT, NULL);
  remove_folder(folder);
}

#define TEMPLATE                                                                                                       \
  "{% for t in tools or [] %}<tool_call>{{ t.function.name }}{% endfor %}{% for m in messages %}<|im_start|>"          \
  "{{ m.content or '' }}{% endfor %}"
#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\"}}]"
#define TURN "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":0,"
/* One call is drawn and then the end: after it the penalties make the end more probable. */
#define ONE_CALL "\"max_tokens\":9,\"presence_penalty\":2,\"frequency_penalty\":2,\"logit_bias\":{\"640\":100,\"2\":97}"

/* The message of a stream's events. */
static json_t *stream_message(const char *stream, const char **finish) {
  json_t *calls = json_array(), *message;
  char content[400] = "";
  for (const char *line = ask_body(stream); (line = strstr(line, "data: {")); line += 6) {
    json_t *j = json_loads(line + 6, JSON_DISABLE_EOF_CHECK, NULL);
    json_t *choice = json_array_get(json_object_get(j, "choices"), 0), *delta = json_object_get(choice, "delta");
    json_t *call = json_array_get(json_object_get(delta, "tool_calls"), 0);
    const char *text = json_string_value(json_object_get(delta, "content"));
    if (text) strcat(content, text);
    if (call) {
      assert_int_equal(json_integer_value(json_object_get(call, "index")), json_array_size(calls));
      json_object_del(call, "index");
      json_array_append(calls, call);
    }
    if (json_is_string(json_object_get(choice, "finish_reason")))
      *finish = strstr(line, "\"finish_reason\":\"tool_calls\"") ? "tool_calls" : "other";
    json_decref(j);
  }
  message = json_pack("{s:s, s:n}", "role", "assistant", "refusal");
  json_object_set_new(message, "content", *content ? json_string(content) : json_null());
  if (json_array_size(calls)) json_object_set(message, "tool_calls", calls);
  json_decref(calls);
  return message;
}

static void test_answers(void **state) {
  (void)state;
  struct place p;
  const char *finish = NULL;
  open_tools(&p, TEMPLATE);
  char *answer = post(p.port, "/v1/chat/completions", "{" TURN TOOLS "," ONE_CALL "}");
  json_t *j = json_of(answer), *choice = json_array_get(json_object_get(j, "choices"), 0),
         *message = json_object_get(choice, "message"),
         *call = json_array_get(json_object_get(message, "tool_calls"), 0);
  const char *arguments = NULL;
  json_unpack(call, "{s:{s:s}}", "function", "arguments", &arguments);
  if (!arguments) fail_msg("%s", answer);
  assert_string_equal(arguments, "{\"city\":\"Bonn\"}");
  assert_true(json_is_null(json_object_get(message, "content")) && json_is_null(json_object_get(message, "refusal")));
  assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "tool_calls");
  char *stream = post(p.port, "/v1/chat/completions", "{\"stream\":true," TURN TOOLS "," ONE_CALL "}");
  json_t *streamed = stream_message(stream, &finish);
  if (!json_equal(streamed, message)) fail_msg("%s\n%s", answer, stream);
  assert_string_equal(finish, "tool_calls");
  free(stream), free(answer);
  json_decref(streamed), json_decref(j);
  static const char *const texts[] = {"", TOOLS ",\"tool_choice\":\"none\","}; /* without tools it is text */
  for (int i = 0; i < 2; i++) {
    char body[600];
    snprintf(body, sizeof body, "{" TURN "%s" ONE_CALL "}", texts[i]);
    answer = post(p.port, "/v1/chat/completions", body);
    if (strstr(answer, "tool_calls") || !strstr(answer, "<tool_call>") || !strstr(answer, "\"finish_reason\":\"stop\""))
      fail_msg("%s", answer);
    free(answer);
  }
  close_place(&p);
}

#define CITY                                                                                                           \
  "{\"type\":\"object\",\"properties\":{\"city\":{\"$ref\":\"#/$defs/c\"}},\"required\":[\"city\"],"                   \
  "\"additionalProperties\":false,\"$defs\":{\"c\":{\"enum\":[\"Bonn\",\"Rom\"]}}}"
#define TWO                                                                                                            \
  "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"now\"}},{\"type\":\"function\",\"function\":{\"name\":"  \
  "\"weather\",\"parameters\":" CITY "}}],\"logit_bias\":{\"640\":-100},\"tool_choice\":"
#define WEATHER "{\"type\":\"function\",\"function\":{\"name\":\"weather\"}}"

/* A call that must come is one, in every form, and fits its schema. */
static void test_must(void **state) {
  (void)state;
  static const char *const templates[] = {TEMPLATE, "[TOOL_CALLS]{{ tools|length }}{{ messages|length }}",
                                          "<|python_tag|>{{ tools|length }}{{ messages|length }}",
                                          "{{ tools|length }}{{ messages|length }}"};
  static const char *const choices[] = {"\"required\"", WEATHER};
  for (int i = 0; i < 8; i++) {
    struct place p;
    char body[900];
    const char *finish = NULL, *name = NULL, *text = NULL;
    open_tools(&p, templates[i / 2]);
    snprintf(body, sizeof body, "{" TURN TWO "%s}", choices[i % 2]);
    char *answer = post(p.port, "/v1/chat/completions", body);
    json_t *j = json_of(answer),
           *message = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "message");
    json_unpack(json_array_get(json_object_get(message, "tool_calls"), 0), "{s:{s:s, s:s}}", "function", "name", &name,
                "arguments", &text);
    if (!name || json_array_size(json_object_get(message, "tool_calls")) != 1 ||
        !json_is_null(json_object_get(message, "content")) || !strstr(answer, "\"finish_reason\":\"tool_calls\""))
      fail_msg("%s: %s", body, answer);
    const bool weather = !strcmp(name, "weather");
    assert_true(weather || (i % 2 == 0 && !strcmp(name, "now")));
    assert_true(!strcmp(text, "{}") != weather);
    assert_true(!weather || !strcmp(text, "{\"city\":\"Bonn\"}") || !strcmp(text, "{\"city\":\"Rom\"}"));
    snprintf(body, sizeof body, "{\"stream\":true," TURN TWO "%s}", choices[i % 2]);
    char *stream = post(p.port, "/v1/chat/completions", body);
    json_t *streamed = stream_message(stream, &finish);
    if (!json_equal(streamed, message)) fail_msg("%s\n%s", answer, stream);
    json_decref(streamed), json_decref(j);
    free(answer), free(stream);
    if (i == 0) { /* what is cut off is text, without the mark that the prompt has */
      answer = post(p.port, "/v1/chat/completions", "{\"max_tokens\":3," TURN TWO "\"required\"}");
      if (strstr(answer, "tool_call") || !strstr(answer, "\"finish_reason\":\"length\"")) fail_msg("%s", answer);
      free(answer);
    }
    close_place(&p);
  }
}

static void test_refused(void **state) {
  (void)state;
#define BEGUN "\"messages\":[{\"role\":\"assistant\",\"content\":\"He\"}],"
  static const struct {
    const char *template, *body, *says;
  } some[] = {
      {TEMPLATE, TURN "\"tool_choice\":\"required\"", "tool_choice: there are no tools"},
      {TEMPLATE, TURN TOOLS ",\"tool_choice\":\"all\"", "tool_choice: expected"},
      {TEMPLATE, TURN TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\"}", "tool_choice: expected"},
      {TEMPLATE, TURN TOOLS ",\"tool_choice\":{\"function\":{\"name\":\"x\"}}", "tool_choice: this function is not"},
      {TEMPLATE, TURN TOOLS ",\"tool_choice\":\"required\",\"response_format\":{\"type\":\"json_object\"}",
       "tool_choice: a call is not asked for beside"},
      {TEMPLATE, BEGUN TOOLS ",\"tool_choice\":\"required\"", "tool_choice: a call is not asked for in an answer"},
      {TEMPLATE "<function=", TURN TOOLS ",\"tool_choice\":\"required\"", "in a form that is not JSON"},
      {TEMPLATE,
       TURN "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":"
            "{\"not\":{}}}}}}],\"tool_choice\":\"required\"",
       "tool_choice: schema #/anyOf/0/properties/arguments/properties/a: \\\"not\\\" is not served"},
  };
  for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
    struct place p;
    char body[600];
    open_tools(&p, some[i].template);
    snprintf(body, sizeof body, "{%s}", some[i].body);
    char *answer = post(p.port, "/v1/chat/completions", body);
    if (status_of(answer) != 400 || !strstr(answer, some[i].says) || !strstr(answer, "\"param\":\"tool_choice\""))
      fail_msg("%s: expected %s, found %s", body, some[i].says, answer);
    free(answer);
    close_place(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_forced),
                                     cmocka_unit_test(test_held),  cmocka_unit_test(test_answers),
                                     cmocka_unit_test(test_must),  cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
