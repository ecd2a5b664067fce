/* Conversations: what the model reads for a list of messages, and which messages are refused. */
#include "serve/place.h"

#include "winnow/chat.h"

#define MARKS                                                                                                          \
  "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"       \
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define WITH_SYSTEM                                                                                                    \
  "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}" MARKS

/* The tokens that the path gives for these messages are the library's. */
static void same_tokens(const struct place *p, const char *messages, const wn_chat_message *expected, int count) {
  char body[400];
  int32_t *ids;
  size_t n;
  snprintf(body, sizeof body, "{\"messages\":[%s]}", messages);
  char *answer = post(p->port, "/apply-template", body);
  json_t *j = json_of(answer), *tokens = json_object_get(j, "tokens");
  OK(p->own, wn_chat_encode(p->own, p->tok, wn_chat_template_find("chatml"), expected, count, true, &ids, &n));
  if (json_array_size(tokens) != n) fail_msg("%s: expected %zu tokens, found %s", messages, n, answer);
  for (size_t i = 0; i < n; i++) assert_int_equal(json_integer_value(json_array_get(tokens, i)), ids[i]);
  wn_tokens_free(ids);
  json_decref(j);
  free(answer);
}

#define USER "{\"role\":\"user\",\"content\":\"hi\"}"

/* The template's default system message precedes a conversation that has none, as in winnow chat. */
static void test_default_system(void **state) {
  (void)state;
  static const wn_chat_message own[] = {{WN_CHAT_SYSTEM, "You help."}, {WN_CHAT_USER, "hi"}},
                               other[] = {{WN_CHAT_SYSTEM, "Be brief."}, {WN_CHAT_USER, "hi"}};
  struct place p;
  open_chat(&p, WITH_SYSTEM, NULL);
  same_tokens(&p, USER, own, 2);
  same_tokens(&p, "{\"role\":\"system\",\"content\":\"Be brief.\"}," USER, other, 2);
  char *answer = post(p.port, "/v1/chat/completions", "{\"messages\":[" USER "],\"max_tokens\":1}");
  int32_t *ids;
  size_t n;
  OK(p.own, wn_chat_encode(p.own, p.tok, wn_chat_template_find("chatml"), own, 2, true, &ids, &n));
  json_t *j = json_of(answer);
  assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "usage"), "prompt_tokens")), n);
  json_decref(j);
  wn_tokens_free(ids);
  free(answer);
  close_place(&p);
  open_chat(&p, MARKS, NULL);
  same_tokens(&p, USER, own + 1, 1);
  close_place(&p);
}

/* An unknown key in a message is refused by name unless it is empty: clients send answers back as they came. */
static void test_keys_of_messages(void **state) {
  (void)state;
  static const struct {
    const char *more, *says; /* NULL: accepted */
  } rows[] = {
      {"\"name\":\"Ann\"", NULL},
      {"\"name\":7", "name"},
      {"\"refusal\":null,\"annotations\":[],\"audio\":null,\"tool_calls\":[],\"function_call\":null", NULL},
      {"\"tool_calls\":[{\"x\":1}]", "messages[0]: \\\"tool_calls\\\" is not served in this form"},
      {"\"images\":[\"z\"]", "messages[0]: \\\"images\\\" is not served"},
      {"\"contents\":\"a\"", "messages[0]: \\\"contents\\\" is not served"},
  };
  struct place p;
  open_chat(&p, MARKS, NULL);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char body[300];
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\",%s}]}", rows[i].more);
    char *answer = post(p.port, "/apply-template", body);
    if (status_of(answer) != (rows[i].says ? 400 : 200) || (rows[i].says && !strstr(answer, rows[i].says)))
      fail_msg("%s: %s", body, answer);
    free(answer);
  }
  close_place(&p);
}

#define BEGUN "{\"role\":\"assistant\",\"content\":\"He\"}"

/* A NUL in a message is a character like any other; an answer that begins with one is no blank one. */
static void test_nul(void **state) {
  (void)state;
  static const char *const body =
      "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\\u0000b\"}]},"
      "{\"role\":\"assistant\",\"content\":\"\\u0000c\"}]}";
  struct place p;
  open_chat(&p, "{% for m in messages %}{{ m.content|length }}{{ m.content }}{% endfor %}", NULL);
  char *answer = post(p.port, "/apply-template", body),
       *same = post(p.port, "/tokenize", "{\"prompt\":\"3a\\u0000b2\\u0000c\"}");
  json_t *found = json_of(answer), *expected = json_of(same);
  assert_int_equal(json_array_size(json_object_get(expected, "tokens")), 5); /* it has no token for a NUL */
  if (!json_equal(json_object_get(found, "tokens"), json_object_get(expected, "tokens")))
    fail_msg("%s: %s", answer, same);
  json_decref(found), json_decref(expected);
  free(answer), free(same);
  answer = post(p.port, "/v1/responses", "{\"input\":\"\\u0000a\",\"max_output_tokens\":1}");
  assert_int_equal(status_of(answer), 200);
  free(answer);
  close_place(&p);
}

/* Messages in any order that the template takes; where it does not, its own words say why. An answer that has begun is
 * continued, and only what is new is sent. */
static void test_orders(void **state) {
  (void)state;
  static const wn_chat_message twice[] = {{WN_CHAT_USER, "hi"}, {WN_CHAT_USER, "hi"}, {WN_CHAT_SYSTEM, "s"}},
                               begun[] = {{WN_CHAT_USER, "hi"}, {WN_CHAT_ASSISTANT, "He"}};
  struct place p;
  open_chat(&p, MARKS, NULL);
  same_tokens(&p, USER "," USER ",{\"role\":\"system\",\"content\":\"s\"}", twice, 3);
  same_tokens(&p, USER "," BEGUN, begun, 2);
  int32_t *ids;
  size_t n;
  OK(p.own, wn_chat_encode(p.own, p.tok, wn_chat_template_find("chatml"), begun, 2, true, &ids, &n));
  int32_t drawn[6];
  wn_generate_options o;
  wn_generate_options_init(&o, sizeof o);
  o.prompt = ids, o.prompt_count = (int64_t)n, o.tok = p.tok, o.max_tokens = 6, o.drawn = drawn;
  o.sampling = (wn_sampling){.temperature = 0, .top_p = 1};
  wn_generate_result r;
  OK(p.own, wn_generate(p.own, p.same, &o, &r));
  char *text, *answer = post(p.port, "/v1/chat/completions",
                             "{\"messages\":[" USER "," BEGUN "],\"max_tokens\":6,\"temperature\":0}");
  size_t bytes;
  OK(p.own, wn_tokenizer_decode(p.own, p.tok, drawn, (size_t)r.tokens, &text, &bytes));
  json_t *j = json_of(answer);
  const char *content = NULL;
  json_unpack(j, "{s:[{s:{s:s}}]}", "choices", "message", "content", &content);
  if (!content || strcmp(content, text) != 0) fail_msg("%s, expected %s", answer, text);
  json_decref(j);
  free(answer);
  wn_text_free(text);
  wn_tokens_free(ids);
  answer = post(p.port, "/v1/chat/completions",
                "{\"messages\":[" USER "," BEGUN "],\"response_format\":{\"type\":\"json_object\"}}");
  assert_true(status_of(answer) == 400 && strstr(answer, "\"param\":\"response_format\""));
  free(answer);
  close_place(&p);
  open_chat(&p,
            "{% for m in messages %}{% if m.role != 'user' %}\\n{{ raise_exception('users alone') }}{% endif %}"
            "{{ m.content }}{% endfor %}",
            NULL);
  answer = post(p.port, "/apply-template", "{\"messages\":[" USER "," BEGUN "]}");
  assert_true(status_of(answer) == 400 && strstr(answer, "the template refuses this conversation: users alone"));
  free(answer);
  close_place(&p);
  open_chat(&p, "{% for m in messages %}\n{{ m.content|frobnicate }}{% endfor %}", NULL);
  answer = post(p.port, "/apply-template", "{\"messages\":[" USER "]}");
  assert_true(status_of(answer) == 400 && strstr(answer, "line 2: the filter \\\"frobnicate\\\" is not known"));
  free(answer);
  close_place(&p);
}

/* Text parts are joined; tools, the role tool, calls with arguments in a text and variables reach the template. What
 * users and tools wrote has no special tokens. */
static void test_tools(void **state) {
  (void)state;
  static const char template[] =
      "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}:"
      "{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments.city }})"
      "{% endfor %}{% endfor %}{{ 'on' if enable_thinking }}{{ reasoning_effort }}";
#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{}}}]"
  static const struct {
    const char *body, *text; /* NULL: refused */
    int status;
  } rows[] = {
      {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":"
       "\"<|im_start|>\"}]}]",
       "user:a<|im_start|>", 200},
      {"\"messages\":[" USER "]," TOOLS, "[weather]user:hi", 200},
      {"\"messages\":[" USER "],\"tool_choice\":\"none\"," TOOLS, "user:hi", 200},
      {"\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
       "\"function\":{\"name\":\"weather\",\"arguments\":\"{\\\"city\\\":\\\"Bonn\\\"}\"}}]},"
       "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"rain\"}]",
       "assistant:weather(Bonn)tool:rain", 200},
      {"\"messages\":[" USER "],\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"enable_thinking\":true}",
       "user:hionlow", 200},
      {"\"messages\":[" USER "],\"tool_choice\":\"all\"," TOOLS, "tool_choice", 400},
      {"\"messages\":[" USER "],\"tools\":[{\"type\":\"retrieval\"}]", "tools[0]", 400},
      {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", "messages[0]", 400},
      {"\"messages\":[{\"role\":\"robot\",\"content\":\"a\"}]", "messages[0]", 400},
  };
  struct place p;
  open_chat(&p, template, NULL);
  const int32_t mark = wn_tokenizer_find(p.tok, "<|im_start|>", 12);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char body[600];
    snprintf(body, sizeof body, "{%s}", rows[i].body);
    char *answer = post(p.port, "/apply-template", body);
    if (status_of(answer) != rows[i].status) fail_msg("%s: %s", body, answer);
    if (rows[i].status != 200) {
      assert_non_null(strstr(answer, rows[i].text));
    } else {
      json_t *j = json_of(answer), *tokens = json_object_get(j, "tokens");
      int32_t ids[100];
      size_t n = json_array_size(tokens), bytes, marks = 0;
      char *text;
      for (size_t k = 0; k < n; k++) {
        ids[k] = (int32_t)json_integer_value(json_array_get(tokens, k));
        marks += ids[k] == mark;
      }
      OK(p.own, wn_tokenizer_decode(p.own, p.tok, ids, n, &text, &bytes));
      assert_string_equal(text, rows[i].text);
      assert_int_equal(marks, strstr(text, "tool:") ? 2 : 1); /* the template's alone */
      wn_text_free(text);
      json_decref(j);
    }
    free(answer);
  }
  close_place(&p);
  open_chat(&p, MARKS, NULL); /* a template without tools */
  char *answer = post(p.port, "/apply-template", "{\"messages\":[" USER "]," TOOLS "}");
  assert_true(status_of(answer) == 400 && strstr(answer, "has no place for them"));
  free(answer);
  answer = post(p.port, "/v1/chat/completions",
                "{\"messages\":[" USER "],\"max_tokens\":1,\"store\":false,\"metadata\":{\"a\":\"b\"},"
                "\"service_tier\":\"auto\",\"parallel_tool_calls\":true,\"reasoning_effort\":\"low\"}");
  assert_int_equal(status_of(answer), 200);
  free(answer);
  close_place(&p);
}

/* A stream names the role once, even if the answer is empty. */
static void test_role(void **state) {
  (void)state;
  static const char *const fields[] = {
      "\"max_tokens\":0", "\"max_tokens\":9,\"logit_bias\":{\"33\":100},\"stop\":\"A\"", "\"max_tokens\":3"};
  struct place p;
  open_chat(&p, MARKS, NULL);
  for (int i = 0; i < 3; i++) {
    char body[300];
    int roles = 0;
    snprintf(body, sizeof body, "{\"messages\":[" USER "],\"stream\":true,%s}", fields[i]);
    char *answer = post(p.port, "/v1/chat/completions", body);
    assert_non_null(strstr(answer, "data: [DONE]"));
    for (const char *at = answer; (at = strstr(at, "\"role\":\"assistant\"")); at++) roles++;
    if (roles != 1 || (i == 1 && strstr(answer, "\"content\""))) fail_msg("%s", answer);
    free(answer);
  }
  close_place(&p);
}

/* Scores name each token by what it is: its own bytes where it is a part of a character, its number where two have one
 * text; a control token has a name and no bytes. */
static void test_scored_tokens(void **state) {
  (void)state;
  static const char *const asked[] = {"", ",\"return_tokens_as_token_ids\":true"};
  struct place p;
  char body[400], name[64];
  open_chat(&p, MARKS, NULL);
  int32_t *ids;
  size_t n;
  OK(p.own, wn_tokenizer_encode(p.own, p.tok, "\xF0\x9F\xA7\xBF", 4, false, false, &ids, &n)); /* one character */
  assert_true(n > 1);
  const int32_t part = ids[0], control = wn_tokenizer_find(p.tok, "<|im_start|>", 12);
  for (int by_id = 0; by_id < 2; by_id++) {
    snprintf(body, sizeof body,
             "{\"messages\":[" USER
             "],\"max_tokens\":2,\"logprobs\":true,\"top_logprobs\":3,\"logit_bias\":{\"%d\":100}%s}",
             part, asked[by_id]);
    char *answer = post(p.port, "/v1/chat/completions", body), *bytes;
    size_t count;
    OK(p.own, wn_tokenizer_token_bytes(p.own, p.tok, part, false, &bytes, &count));
    assert_true(count >= 1 && count < 4);
    json_t *j = json_of(answer), *list = NULL;
    assert_int_equal(json_unpack(j, "{s:[{s:{s:o}}]}", "choices", "logprobs", "content", &list), 0);
    assert_int_equal(json_array_size(list), 2);
    for (size_t i = 0; i < 2; i++) {
      const json_t *own = json_object_get(json_array_get(list, i), "bytes");
      const char *token = json_string_value(json_object_get(json_array_get(list, i), "token"));
      assert_int_equal(json_array_size(own), count);
      for (size_t k = 0; k < count; k++)
        assert_int_equal(json_integer_value(json_array_get(own, k)), (unsigned char)bytes[k]);
      size_t at = (size_t)snprintf(name, sizeof name, by_id ? "token_id:%d" : "bytes:", part);
      for (size_t k = 0; k < count && !by_id; k++)
        at += (size_t)snprintf(name + at, sizeof name - at, "\\x%02x", (unsigned char)bytes[k]);
      assert_string_equal(token, name);
    }
    json_decref(j);
    free(answer);
    wn_text_free(bytes);
  }
  snprintf(body, sizeof body, "{\"prompt\":\"a\",\"max_tokens\":1,\"logprobs\":5,\"logit_bias\":{\"%d\":100}}",
           control);
  char *answer = post(p.port, "/v1/completions", body);
  json_t *j = json_of(answer), *scores = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "logprobs"),
         *top = json_array_get(json_object_get(scores, "top_logprobs"), 0);
  assert_string_equal(json_string_value(json_array_get(json_object_get(scores, "tokens"), 0)), "<|im_start|>");
  assert_true(json_object_get(top, "<|im_start|>") && json_object_size(top) >= 5);
  json_decref(j);
  free(answer);
  snprintf(body, sizeof body,
           "{\"messages\":[" USER "],\"max_tokens\":1,\"logprobs\":true,\"logit_bias\":{\"%d\":100}}", control);
  answer = post(p.port, "/v1/chat/completions", body);
  assert_non_null(strstr(answer, "\"token\":\"<|im_start|>\""));
  assert_non_null(strstr(answer, "\"bytes\":null"));
  free(answer);
  wn_tokens_free(ids);
  close_place(&p);
}

static char logged[2000];
static void on_log(void *user, wn_log_level level, const char *line) {
  (void)user;
  if (level == WN_LOG_INFO && strstr(line, "changes nothing") && strlen(logged) + strlen(line) < sizeof logged - 2)
    strcat(strcat(logged, line), "\n");
}

/* Fields that change nothing are taken, and named in the log once; null is a field that is not given. */
static void test_idle_fields(void **state) {
  (void)state;
  const wn_context_options options = {.size = sizeof options, .threads = 1, .backend = "cpu", .log = on_log};
  const wn_server_options o = {.size = sizeof o};
  struct place p = {0};
  OK(NULL, wn_context_create(&options, &p.ctx));
  OK(p.ctx, wn_tokenizer_load(p.ctx, "bytes", &p.tok));
  p.model = bytes_model(p.ctx, CONTEXT);
  OK(p.ctx, wn_server_start(p.ctx, p.model, p.tok, &o, &p.server));
  const int port = wn_server_port(p.server);
  char *plain = post(port, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":4,\"temperature\":0}"), *expected;
  expected = text_of(plain, 0);
  assert_string_equal(logged, "");
  for (int i = 0; i < 3; i++) {
    char *answer =
             post(port, "/v1/completions",
                  "{\"prompt\":\"a\",\"max_tokens\":4,\"temperature\":0,\"store\":true,\"metadata\":{\"a\":[1]},"
                  "\"prompt_cache_key\":\"k\",\"service_tier\":\"auto\",\"safety_identifier\":null,\"stop\":null,"
                  "\"seed\":null,\"stream_options\":{\"include_usage\":null},\"winnow\":{\"tau\":null,\"budgets\":"
                  "null},\"response_format\":null}"),
         *text = text_of(answer, 0);
    assert_string_equal(text, expected);
    free(answer), free(text);
  }
  static const char *const names[] = {"store", "metadata", "prompt_cache_key", "service_tier"};
  int lines = 0;
  for (const char *c = logged; *c; c++) lines += *c == '\n';
  assert_int_equal(lines, 4);
  for (int i = 0; i < 4; i++) assert_non_null(strstr(logged, names[i]));
  free(plain), free(expected);
  wn_server_stop(p.server);
  wn_tokenizer_destroy(p.tok);
  wn_model_destroy(p.model);
  wn_context_destroy(p.ctx);
}

/* Templates by name: the one for tools is used with tools alone, and says how calls are written. */
static void test_named_templates(void **state) {
  (void)state;
  static const char *const more[] = {"", ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"};
  static const wn_chat_message plain[] = {{WN_CHAT_USER, "hi"}},
                               tools[] = {{WN_CHAT_SYSTEM, "tools"}, {WN_CHAT_USER, "hi"}};
  struct place p;
  json_t *list =
      json_pack("[{s:s, s:s}, {s:s, s:s}]", "name", "tool_use", "template",
                "<|im_start|>system\n{{ 'tools' if tools }}<|im_end|>\n" MARKS, "name", "default", "template", MARKS);
  open_chat_of(&p, list, NULL);
  for (int i = 0; i < 2; i++) {
    char body[200];
    int32_t *ids;
    size_t n;
    snprintf(body, sizeof body, "{\"messages\":[" USER "]%s}", more[i]);
    char *answer = post(p.port, "/apply-template", body);
    json_t *j = json_of(answer);
    OK(p.own, wn_chat_encode(p.own, p.tok, wn_chat_template_find("chatml"), i ? tools : plain, 1 + i, true, &ids, &n));
    assert_int_equal(json_array_size(json_object_get(j, "tokens")), n);
    wn_tokens_free(ids);
    json_decref(j);
    free(answer);
  }
  char *answer = ask_for(p.port, "GET", "/props");
  assert_true(strstr(answer, "\"total_slots\":8") && strstr(answer, "\"chat_template_tool_use\":") &&
              strstr(answer, "\"n_ctx\":200"));
  free(answer);
  close_place(&p);
}

/* Parts count like a text: what cannot fit is refused by its bytes, on either path. */
static void test_long_parts(void **state) {
  (void)state;
  static const char *const paths[] = {"/v1/chat/completions", "/apply-template"};
  enum { BYTES = 20000 };
  struct place p;
  char *text = malloc(BYTES + 1), *body = malloc(3 * BYTES);
  memset(text, 'a', BYTES);
  text[BYTES] = 0;
  snprintf(body, 3 * BYTES,
           "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"%s\"},"
           "{\"type\":\"text\",\"text\":\"%s\"}]}]}",
           text, text);
  open_chat(&p, MARKS, NULL);
  for (int i = 0; i < 2; i++) {
    char *answer = post(p.port, paths[i], body);
    if (status_of(answer) != 400 || !strstr(answer, "messages: 40000 bytes, more than the context"))
      fail_msg("%s: %s", paths[i], answer);
    free(answer);
  }
  close_place(&p);
  free(text), free(body);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_default_system), cmocka_unit_test(test_keys_of_messages),
                                     cmocka_unit_test(test_role),           cmocka_unit_test(test_nul),
                                     cmocka_unit_test(test_orders),         cmocka_unit_test(test_named_templates),
                                     cmocka_unit_test(test_tools),          cmocka_unit_test(test_scored_tokens),
                                     cmocka_unit_test(test_idle_fields),    cmocka_unit_test(test_long_parts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
