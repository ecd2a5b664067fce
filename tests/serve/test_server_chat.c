/* Conversations: what the model reads for a list of messages, and which messages are refused. */
#include "serve/place.h"

#include "winnow/chat.h"

#define MARKS "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' }}"
#define WITH_SYSTEM "{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}" MARKS

static char folder[512];

/* A server whose tokenizer has this chat template. */
static void open_chat(struct place *p, const char *template, const wn_server_options *options) {
  json_t *config =
      json_pack("{s:s, s:s, s:s}", "bos_token", "<|im_start|>", "eos_token", "<|im_end|>", "chat_template", template);
  make_folder(folder);
  assert_int_equal(symlink(WN_TEST_DIR "/golden/bpe/smollm.json", path_in(folder, "tokenizer.json")), 0);
  assert_int_equal(json_dump_file(config, path_in(folder, "tokenizer_config.json"), 0), 0);
  json_decref(config);
  open_place_with(p, folder, CONTEXT, options);
  remove_folder(folder);
}

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
      {"\"tool_calls\":[{\"x\":1}]", "messages[0]: \\\"tool_calls\\\" is not served"},
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

/* Messages in any order that the template takes; one that it does not is named by its number among the client's. An
 * answer that has begun is continued, and only what is new is sent. */
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
  open_chat(&p, "{{ '<start_of_turn>' + role + '\\n' + m['content'] | trim + '<end_of_turn>\\n' }}", NULL);
  answer = post(p.port, "/apply-template", "{\"messages\":[" USER "," USER "]}");
  assert_true(status_of(answer) == 400 &&
              strstr(answer, "message 1: with the model's template (gemma) the user and the"));
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_default_system), cmocka_unit_test(test_keys_of_messages),
                                     cmocka_unit_test(test_role), cmocka_unit_test(test_orders),
                                     cmocka_unit_test(test_scored_tokens)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
