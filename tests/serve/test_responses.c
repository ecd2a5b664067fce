/* /v1/responses: says what /v1/chat/completions says, in its own form; events tell it in order; kept responses go on.
 * Thoughts are split off however the answer is cut. */
#include "serve/place.h"

#include "serve/kept.h"
#include "serve/reasoning.h"

#define MARKS                                                                                                          \
  "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{{ m.tool_calls[0].function|tojson }}"        \
  "{% endif %}{{ m.content or '' }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"      \
  "{% endif %}"
#define WITH_TOOLS "{% if tools %}{{ tools[0].function.name }} <tool_call>{% endif %}" MARKS

static json_t *asked(const struct place *p, const char *path, const char *body) {
  char *answer = post(p->port, path, body);
  if (status_of(answer) != 200) fail_msg("%s: %.600s", body, answer);
  json_t *out = json_of(answer);
  free(answer);
  return out;
}

/* The value at output[i].content[0].text. */
static const char *said(const json_t *response, size_t i) {
  const json_t *item = json_array_get(json_object_get(response, "output"), i);
  return json_string_value(json_object_get(json_array_get(json_object_get(item, "content"), 0), "text"));
}

static const char *chat_said(const json_t *answer, const char *field) {
  const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0);
  return json_string_value(json_object_get(json_object_get(choice, "message"), field));
}

static json_int_t count_of(const json_t *answer, const char *name) {
  return json_integer_value(json_object_get(json_object_get(answer, "usage"), name));
}

static void is_text(const json_t *object, const char *key, const char *text) {
  const char *found = json_string_value(json_object_get(object, key));
  if (!found || strcmp(found, text) != 0) fail_msg("%s is %s, expected %s", key, found ? found : "nothing", text);
}

/* Both paths give one answer, for a text and for items of any spelling. */
static void test_same(void **state) {
  (void)state;
  static const char *const inputs[] = {
      "\"hi\"", "[{\"role\":\"user\",\"content\":\"hi\"}]",
      "[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"h\"},{\"type\":"
      "\"input_text\",\"text\":\"i\"}]}]"};
  struct place p;
  open_chat(&p, MARKS, NULL);
  json_t *chat = asked(&p, "/v1/chat/completions",
                       "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":"
                       "\"hi\"}],\"max_tokens\":7,\"temperature\":0}");
  for (int i = 0; i < 3; i++) {
    char body[400];
    snprintf(body, sizeof body,
             "{\"input\":%s,\"instructions\":\"Be brief.\",\"max_output_tokens\":7,\"temperature\":0}", inputs[i]);
    json_t *j = asked(&p, "/v1/responses", body);
    assert_string_equal(said(j, 0), chat_said(chat, "content"));
    assert_int_equal(count_of(j, "input_tokens"), count_of(chat, "prompt_tokens"));
    assert_int_equal(count_of(j, "output_tokens"), count_of(chat, "completion_tokens"));
    is_text(j, "object", "response");
    is_text(j, "status", "incomplete");
    is_text(json_object_get(j, "incomplete_details"), "reason", "max_output_tokens");
    is_text(j, "instructions", "Be brief.");
    json_decref(j);
  }
  json_decref(chat);
  close_place(&p);
}

/* Reads the events of a stream; checks names and numbers. A list of their data. */
static json_t *events_of(const struct place *p, const char *body) {
  char *answer = post(p->port, "/v1/responses", body);
  json_t *out = json_array();
  if (status_of(answer) != 200) fail_msg("%.600s", answer);
  for (char *at = (char *)(uintptr_t)ask_body(answer); *at;) {
    char *data = strstr(at, "\ndata: "), *end = data ? strstr(data, "\n\n") : NULL;
    if (strncmp(at, "event: ", 7) != 0 || !end) fail_msg("no event: %.200s", at);
    *data = *end = 0;
    json_t *j = json_loads(data + 7, 0, NULL);
    is_text(j, "type", at + 7);
    assert_int_equal(json_integer_value(json_object_get(j, "sequence_number")), json_array_size(out));
    json_array_append_new(out, j);
    at = end + 2;
  }
  free(answer);
  return out;
}

/* The types of events, each once where it is repeated, as one text. */
static char *types_of(const json_t *events) {
  char *out = NULL;
  size_t bytes, i;
  FILE *file = open_memstream(&out, &bytes);
  const char *before = "";
  json_t *one;
  json_array_foreach(events, i, one) {
    const char *type = json_string_value(json_object_get(one, "type"));
    if (strcmp(type, before) != 0) fprintf(file, "%s ", strchr(type, '.') ? strchr(type, '.') + 1 : type);
    before = type;
  }
  fclose(file);
  return out;
}

static void test_events(void **state) {
  (void)state;
  struct place p;
  char text[400] = "";
  size_t i;
  json_t *one;
  open_chat(&p, MARKS, NULL);
  json_t *events = events_of(&p, "{\"input\":\"hi\",\"max_output_tokens\":9,\"seed\":3,\"stream\":true}");
  json_t *whole = asked(&p, "/v1/responses", "{\"input\":\"hi\",\"max_output_tokens\":9,\"seed\":3}");
  char *types = types_of(events);
  assert_string_equal(types, "created in_progress output_item.added content_part.added output_text.delta "
                             "output_text.done content_part.done output_item.done incomplete ");
  json_array_foreach(events, i, one) {
    const char *delta = json_string_value(json_object_get(one, "delta"));
    if (delta) strcat(text, delta);
  }
  assert_string_equal(text, said(whole, 0));
  const json_t *last = json_object_get(json_array_get(events, json_array_size(events) - 1), "response");
  assert_string_equal(said(last, 0), text);
  assert_int_equal(count_of(last, "output_tokens"), 9);
  free(types);
  json_decref(events);
  json_decref(whole);
  /* scores of every token */
  events = events_of(
      &p, "{\"input\":\"hi\",\"max_output_tokens\":5,\"seed\":3,\"top_logprobs\":2,\"include\":[\"message.output_text."
          "logprobs\"],\"stream\":true}");
  last = json_object_get(json_array_get(events, json_array_size(events) - 1), "response");
  const json_t *part =
      json_array_get(json_object_get(json_array_get(json_object_get(last, "output"), 0), "content"), 0);
  assert_int_equal(json_array_size(json_object_get(part, "logprobs")), 5);
  json_decref(events);
  close_place(&p);
}

/* A conversation by previous_response_id reads what a chat of all its messages reads; instructions are not kept. */
static void test_previous(void **state) {
  (void)state;
  struct place p;
  char body[1200], path[100];
  open_chat(&p, MARKS, NULL);
  json_t *first = asked(&p, "/v1/responses",
                        "{\"input\":\"hi\",\"instructions\":\"Be brief.\",\"max_output_tokens\":5,\"temperature\":0}");
  const char *id = json_string_value(json_object_get(first, "id"));
  snprintf(
      body, sizeof body,
      "{\"input\":\"and\",\"previous_response_id\":\"%s\",\"max_output_tokens\":5,\"temperature\":0,\"store\":false}",
      id);
  json_t *second = asked(&p, "/v1/responses", body);
  json_t *chat = json_pack("{s:[{s:s,s:s},{s:s,s:s},{s:s,s:s}],s:i,s:i}", "messages", "role", "user", "content", "hi",
                           "role", "assistant", "content", said(first, 0), "role", "user", "content", "and",
                           "max_tokens", 5, "temperature", 0);
  char *text = json_dumps(chat, 0);
  json_t *same = asked(&p, "/v1/chat/completions", text);
  assert_string_equal(said(second, 0), chat_said(same, "content"));
  assert_int_equal(count_of(second, "input_tokens"), count_of(same, "prompt_tokens"));
  is_text(second, "previous_response_id", id);
  /* the kept one can be read and dropped; one that was not stored cannot */
  const char *const ids[] = {id, json_string_value(json_object_get(second, "id")), id, id};
  static const char *const methods[] = {"GET", "GET", "DELETE", "GET"};
  static const int status[] = {200, 404, 200, 404};
  for (int i = 0; i < 4; i++) {
    snprintf(path, sizeof path, "/v1/responses/%s", ids[i]);
    char *request = request_of(methods[i], path, "", NULL), *answer = ask(p.port, request);
    assert_int_equal(status_of(answer), status[i]);
    if (i == 0) {
      json_t *j = json_of(answer);
      assert_string_equal(said(j, 0), said(first, 0));
      json_decref(j);
    }
    free(request);
    free(answer);
  }
  char *answer = post(p.port, "/v1/responses", body);
  assert_int_equal(status_of(answer), 400);
  assert_non_null(strstr(answer, "previous_response_id"));
  free(answer);
  free(text);
  json_decref(chat);
  json_decref(same);
  json_decref(first);
  json_decref(second);
  close_place(&p);
}

#define TOOLS                                                                                                          \
  "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\","              \
  "\"properties\":{\"a\":"                                                                                             \
  "{\"type\":\"integer\",\"minimum\":3,\"maximum\":4}},\"required\":[\"a\"],\"additionalProperties\":false}}]"

static void test_calls(void **state) {
  (void)state;
  struct place p;
  char body[900];
  open_chat(&p, WITH_TOOLS, NULL);
  json_t *j =
      asked(&p, "/v1/responses", "{\"input\":\"hi\"," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}}");
  const json_t *call = json_array_get(json_object_get(j, "output"), 0);
  is_text(call, "type", "function_call");
  is_text(call, "name", "f");
  is_text(j, "status", "completed");
  const char *arguments = json_string_value(json_object_get(call, "arguments"));
  assert_true(!strcmp(arguments, "{\"a\":3}") || !strcmp(arguments, "{\"a\":4}"));
  /* its result, after the call as an item and after the kept response: the same prompt */
  snprintf(body, sizeof body,
           "{\"input\":[{\"role\":\"user\",\"content\":\"hi\"},{\"type\":\"function_call\",\"call_id\":\"%s\",\"name\":"
           "\"f\","
           "\"arguments\":\"{\\\"a\\\":%c}\"},{\"type\":\"function_call_output\",\"call_id\":\"%s\",\"output\":\"7\"}],"
           "\"max_output_tokens\":2}",
           json_string_value(json_object_get(call, "call_id")), arguments[5],
           json_string_value(json_object_get(call, "call_id")));
  json_t *items = asked(&p, "/v1/responses", body);
  snprintf(
      body, sizeof body,
      "{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"%s\",\"output\":\"7\"}],\"previous_response_id\":"
      "\"%s\",\"max_output_tokens\":2}",
      json_string_value(json_object_get(call, "call_id")), json_string_value(json_object_get(j, "id")));
  json_t *previous = asked(&p, "/v1/responses", body);
  assert_int_equal(count_of(items, "input_tokens"), count_of(previous, "input_tokens"));
  json_decref(items);
  json_decref(previous);
  json_decref(j);
  json_t *events = events_of(&p, "{\"input\":\"hi\"," TOOLS ",\"tool_choice\":\"required\",\"stream\":true}");
  char *types = types_of(events);
  assert_string_equal(types, "created in_progress output_item.added function_call_arguments.delta "
                             "function_call_arguments.done output_item.done completed ");
  free(types);
  json_decref(events);
  j = asked(&p, "/v1/responses",
            "{\"input\":\"hi\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"strict\":true,"
            "\"schema\":{\"const\":"
            "[1,\"x\"]}}}}");
  json_t *value = json_loads(said(j, 0), 0, NULL);
  assert_true(json_array_size(value) == 2);
  json_decref(value);
  json_decref(j);
  close_place(&p);
}

static void test_refused(void **state) {
  (void)state;
  static const char *const rows[][2] = {
      {"{}", "input: missing"},
      {"{\"input\":[]}", "input: expected a text, or a list"},
      {"{\"input\":7}", "input: expected a text, or a list"},
      {"{\"input\":[{\"type\":\"computer_call\"}]}", "items of type \\\"computer_call\\\" are not served"},
      {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}", "input[0]: expected {"},
      {"{\"input\":[{\"type\":\"function_call\",\"name\":\"f\"}]}", "input[0]: expected {"},
      {"{\"input\":[{\"role\":\"cook\",\"content\":\"a\"}]}", "\"param\":\"input\""},
      {"{\"input\":\"a\",\"messages\":[]}", "messages: this field is not known to /v1/responses"},
      {"{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"}]}", "tools[0]: expected"},
      {"{\"input\":\"a\",\"background\":true}", "background: only false"},
      {"{\"input\":\"a\",\"previous_response_id\":\"resp_0\"}", "there is no response \\\"resp_0\\\""},
      {"{\"input\":\"a\",\"max_output_tokens\":-1}", "max_output_tokens: expected"},
      {"{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"not\":{}}}}}",
       "text.format: schema #: \\\"not\\\""},
      {"{\"input\":\"a\",\"text\":{\"form\":{}}}", "text: \\\"form\\\" is not known"},
      {"{\"input\":\"a\",\"include\":[\"file_search_call.results\"]}", "include: "},
      {"{\"input\":\"a\",\"store\":1}", "store: expected"},
      {"{\"input\":\"a\",\"temperature\":-1}", "temperature: expected"},
      {"[]", "not an object"},
  };
  struct place p;
  open_chat(&p, MARKS, NULL);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *answer = post(p.port, "/v1/responses", rows[i][0]);
    if (status_of(answer) != 400 || !strstr(answer, rows[i][1])) fail_msg("%s: %s", rows[i][0], answer);
    json_decref(json_of(answer));
    free(answer);
  }
  char *answer = post(p.port, "/v1/rerank", "{\"query\":\"a\",\"documents\":[\"b\"]}");
  assert_int_equal(status_of(answer), 400);
  free(answer);
  close_place(&p);
}

/* The least recently used goes first, by number and by bytes. */
static void test_kept(void **state) {
  (void)state;
  struct wn_kept *k = test_calloc(1, sizeof *k);
  json_t *small = json_pack("[s]", "a"), *large;
  char *text = test_malloc(20 << 20), id[32];
  memset(text, 'x', (20 << 20) - 1);
  text[(20 << 20) - 1] = 0;
  large = json_pack("[s]", text);
  wn_kept_open(k);
  for (int i = 0; i < WN_KEPT_RESPONSES + 2; i++) {
    snprintf(id, sizeof id, "%d", i);
    wn_kept_add(k, id, small, small);
    json_t *used = wn_kept_turns(k, "1"); /* so that it stays */
    assert_true(i == 0 || used);
    json_decref(used);
  }
  assert_int_equal(k->count, WN_KEPT_RESPONSES);
  assert_true(!wn_kept_turns(k, "0") && !wn_kept_response(k, "2") && wn_kept_drop(k, "3") && !wn_kept_drop(k, "3"));
  for (int i = 0; i < 4; i++) {
    snprintf(id, sizeof id, "large%d", i);
    wn_kept_add(k, id, large, small);
    assert_true(k->bytes <= WN_KEPT_BYTES);
  }
  assert_int_equal(k->count, 3);
  wn_kept_close(k);
  json_decref(small);
  json_decref(large);
  test_free(text);
  test_free(k);
}

/* Thoughts in angle brackets, then the text, cut into pieces of any size. */
static void test_thoughts(void **state) {
  (void)state;
  static const char *const rows[][3] = {/* the prompt's end, the answer, what it is */
                                        {"", "<think>\na b\n</think>\n\nyes", "<a b>yes"},
                                        {"", " <think>a</think>b</think>c", "<a>b</think>c"},
                                        {"", "yes <think>a</think>", "yes <think>a</think>"},
                                        {"", "<think></think>yes ", "yes "},
                                        {"", "<think>a  </thin k> ", "<a  </thin k> >"},
                                        {"", "<thin", "<thin"},
                                        {"", "  \n", "  \n"},
                                        {"", "<think>a", "<a>"},
                                        {"assistant\n<think>\n", "a\n</think>\nyes", "<a>yes"},
                                        {"<think>\n\n</think>\n\n", "yes", "yes"}};
  assert_null(wn_reasoning_form_of("no thoughts"));
  assert_null(wn_reasoning_form_of(NULL));
  const struct wn_reasoning_form *form = wn_reasoning_form_of("{{ x.split('</think>') }}");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    for (size_t piece = 1; piece < 9; piece++) {
      const char *answer = rows[i][1], *text;
      char out[200] = "", *at = out;
      bool thought, inside = false;
      size_t bytes, n = strlen(answer);
      struct wn_reasoning *r = wn_reasoning_create(form, rows[i][0], strlen(rows[i][0]));
      for (size_t from = 0; from <= n; from += piece) {
        assert_true(wn_reasoning_push(r, answer + from, n - from < piece ? n - from : piece));
        while (wn_reasoning_next(r, from + piece > n, &text, &bytes, &thought)) {
          if (thought != inside) *at++ = thought ? '<' : '>';
          inside = thought;
          memcpy(at, text, bytes);
          at += bytes;
        }
      }
      if (inside) *at++ = '>';
      if (strcmp(out, rows[i][2]) != 0) fail_msg("%s, by %zu: %s, expected %s", answer, piece, out, rows[i][2]);
      wn_reasoning_destroy(r);
    }
}

/* A template that begins the thoughts: all that the model writes here is one. */
static void test_thinks(void **state) {
  (void)state;
  struct place p;
  open_chat(&p, MARKS "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}", NULL);
  json_t *chat = asked(&p, "/v1/chat/completions",
                       "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":7,\"seed\":1}");
  assert_string_equal(chat_said(chat, "content"), "");
  assert_true(strlen(chat_said(chat, "reasoning_content")) > 0);
  json_t *j = asked(&p, "/v1/responses", "{\"input\":\"hi\",\"max_output_tokens\":7,\"seed\":1}");
  is_text(json_array_get(json_object_get(j, "output"), 0), "type", "reasoning");
  assert_string_equal(said(j, 0), chat_said(chat, "reasoning_content"));
  char *answer =
      post(p.port, "/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":7,\"seed\":1,\"stream\":true}");
  assert_true(strstr(answer, "\"reasoning_content\":") && !strstr(answer, "\"content\":"));
  free(answer);
  json_decref(j);
  json_decref(chat);
  close_place(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_same),     cmocka_unit_test(test_events),
                                     cmocka_unit_test(test_previous), cmocka_unit_test(test_calls),
                                     cmocka_unit_test(test_refused),  cmocka_unit_test(test_kept),
                                     cmocka_unit_test(test_thoughts), cmocka_unit_test(test_thinks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
