/* The server: its answers equal the library's to the bit, alone and among others; requests that are refused, and the
 * names in the messages; clients that leave free what they held. */
#include "serve/place.h"
#include "policies.h"

#define E_ACUTE "\xC3\xA9"
#define E10 E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE E_ACUTE
#define E40 E10 E10 E10 E10
#define D8 "[[[[[[[["
#define D64 D8 D8 D8 D8 D8 D8 D8 D8

/* Bytes that are not UTF-8 become U+FFFD in both. */
static void test_same_as_the_library(void **state) {
  (void)state;
  struct place p;
  struct written expected;
  wn_budgets budgets;
  open_place(&p, NULL);
  for (int k = 0; k < 3; k++) {
    char body[512];
    budgets_init(&budgets);
    if (k) assert_int_equal(wn_policy_find(NULL, k == 1 ? "h2o" : "window", &budgets.policy), WN_OK);
    if (k) OK(p.own, wn_budgets_parse(p.own, wn_model_config_get(p.same), k == 1 ? "9" : "7,12", &budgets));
    write_alone(&p, "The water", 40, 0.9, 17, k ? &budgets : NULL, &expected);
    snprintf(body, sizeof body, "{\"prompt\":\"The water\",\"max_tokens\":40,\"temperature\":0.9,\"seed\":17%s}",
             k == 1   ? ",\"winnow\":{\"budgets\":9,\"policy\":\"h2o\"}"
             : k == 2 ? ",\"winnow\":{\"budgets\":\"7,12\",\"policy\":\"window\"}"
                      : "");
    char *answer = post(p.port, "/v1/completions", body), *text = text_of(answer, 0);
    assert_string_equal(text, expected.text);
    json_t *j = json_of(answer), *usage = json_object_get(j, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")), 9);
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 40);
    const json_t *kept = json_object_get(json_object_get(usage, "winnow"), "tokens_kept");
    assert_int_equal(json_integer_value(json_array_get(kept, 0)), k == 1 ? 9 : k == 2 ? 7 : 48);
    assert_int_equal(json_integer_value(json_array_get(kept, 1)), k == 1 ? 9 : k == 2 ? 12 : 48);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(usage, "winnow"), "evicted")), k == 1 ? 78
                                                                                                       : k == 2
                                                                                                           ? 41 + 36
                                                                                                           : 0);
    json_decref(j);
    free(text);
    free(answer);
    wn_budgets_clear(&budgets);
  }
  /* Budgets that are never reached change nothing. */
  const char *plain = "{\"prompt\":[1,2,3,4],\"max_tokens\":30,\"seed\":3}";
  const char *wide =
      "{\"prompt\":[1,2,3,4],\"max_tokens\":30,\"seed\":3,\"winnow\":{\"budgets\":34,\"policy\":\"tova\"}}";
  char *a = post(p.port, "/v1/completions", plain), *b = post(p.port, "/v1/completions", wide);
  char *x = text_of(a, 0), *y = text_of(b, 0);
  assert_string_equal(x, y);
  free(a), free(b), free(x), free(y);
  close_place(&p);
}

/* A window is a policy and a budget. A request's threshold is its session's. */
static void test_window_and_tau(void **state) {
  (void)state;
  static const char *const pairs[][2] = {
      {"\"window\":10", "\"budgets\":10,\"policy\":\"window\""},
      {"\"window\":10,\"sinks\":3", "\"budgets\":13,\"policy\":\"streaming\",\"sinks\":3"},
      {"\"window\":10,\"sinks\":0", "\"budgets\":10,\"policy\":\"window\""},
      {"\"tau\":0", "\"tau\":0,\"window\":200"},
      {"\"tau\":0,\"window\":7", "\"budgets\":7,\"policy\":\"window\""}};
  struct place p;
  char body[300];
  open_place(&p, NULL);
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    char *texts[2];
    for (int k = 0; k < 2; k++) {
      snprintf(body, sizeof body, "{\"prompt\":\"The water is wide\",\"max_tokens\":60,\"seed\":2,\"winnow\":{%s}}",
               pairs[i][k]);
      char *answer = post(p.port, "/v1/completions", body);
      texts[k] = text_of(answer, 0);
      free(answer);
    }
    assert_string_equal(texts[0], texts[1]);
    free(texts[0]), free(texts[1]);
  }
  float logits[V];
  const int32_t ids[] = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'};
  wn_session *s;
  const wn_session_options o = {.size = sizeof o, .sequences = 1, .capacity = 20, .tau = 0.3};
  OK(p.own, wn_session_create(p.own, p.same, &o, &s));
  OK(p.own, wn_session_feed(p.own, s, ids, 8, 0, logits));
  int32_t best = 0;
  for (int v = 0; v < V; v++) best = logits[v] > logits[best] ? v : best;
  double expected, found[2];
  OK(p.own,
     wn_session_score_next(p.own, s, &best, 1, &(wn_scores){.size = sizeof(wn_scores), .log_probability = &expected}));
  wn_session_destroy(s);
  for (int k = 0; k < 2; k++) {
    snprintf(body, sizeof body,
             "{\"prompt\":[97,98,99,100,101,102,103,104],\"max_tokens\":1,\"temperature\":0,\"logprobs\":0%s}",
             k ? "" : ",\"winnow\":{\"tau\":0.3}");
    char *answer = post(p.port, "/v1/completions", body);
    json_t *j = json_of(answer),
           *scores = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "logprobs");
    found[k] = json_real_value(json_array_get(json_object_get(scores, "token_logprobs"), 0));
    json_decref(j);
    free(answer);
  }
  assert_true(fabs(found[0] - expected) < 1e-7 && fabs(found[1] - expected) > 1e-5);
  close_place(&p);
}

/* What a model's backend or cache does not support is refused before it runs. */
static void test_unserved(void **state) {
  (void)state;
  struct place p;
  open_place(&p, &(wn_server_options){.cache = WN_CACHE_HALF});
  char *answer = post(p.port, "/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"tau\":0.5}}");
  assert_true(status_of(answer) == 400 && strstr(answer, "a cache in half cannot be combined with"));
  free(answer);
  answer = post(p.port, "/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"tau\":0}}");
  assert_int_equal(status_of(answer), 200);
  free(answer);
  close_place(&p);
}

static void test_streams(void **state) {
  (void)state;
  struct place p;
  open_place(&p, NULL);
  char *whole = post(p.port, "/v1/completions", "{\"prompt\":\"On a hill\",\"max_tokens\":60,\"seed\":5,\"n\":2}");
  char *stream = post(p.port, "/v1/completions",
                      "{\"prompt\":\"On a hill\",\"max_tokens\":60,\"seed\":5,\"n\":2,\"stream\":true,"
                      "\"stream_options\":{\"include_usage\":true}}");
  assert_non_null(strstr(stream, "text/event-stream"));
  for (int i = 0; i < 2; i++) {
    char joined[4096] = "", *expected = text_of(whole, i);
    int ends = 0, usages = 0, done = 0;
    for (const char *line = ask_body(stream); (line = strstr(line, "data: ")); line += 6) {
      if (!strncmp(line + 6, "[DONE]", 6)) {
        done++;
        continue;
      }
      json_t *j = json_loads(line + 6, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
      assert_non_null(j);
      assert_int_equal(done, 0);
      const json_t *choice = json_array_get(json_object_get(j, "choices"), 0);
      usages += json_object_get(j, "usage") != NULL;
      if (choice && json_integer_value(json_object_get(choice, "index")) == i) {
        assert_int_equal(ends, 0);
        strcat(joined, json_string_value(json_object_get(choice, "text")));
        ends += json_is_string(json_object_get(choice, "finish_reason"));
      }
      json_decref(j);
    }
    assert_true(ends == 1 && usages == 1 && done == 1);
    assert_string_equal(joined, expected);
    free(expected);
  }
  free(whole);
  free(stream);
  close_place(&p);
}

/* Many requests of different lengths and budgets, all at once or some after others: each gets what it gets alone, which
 * is what the library generates. */
enum { CLIENTS = 24 };
static const char client_prompt[] = "a boat that came from far away in the rain";
struct client {
  int port, number;
  char *answer;
};
static int64_t client_tokens(int i) {
  return 30 + 2 * i;
}
static void client_body(int i, char *body, size_t bytes) {
  snprintf(body, bytes, "{\"prompt\":\"%.*s\",\"max_tokens\":%lld,\"temperature\":1.1,\"seed\":%d%s}", 3 + i,
           client_prompt, (long long)client_tokens(i), i,
           i % 3 == 0 ? ",\"winnow\":{\"budgets\":8,\"policy\":\"snapkv\"}" : "");
}
/* Generates the same with the library. */
static char *client_alone(const struct place *p, int i) {
  char prompt[80];
  struct written w;
  wn_budgets budgets;
  budgets_init(&budgets);
  assert_int_equal(wn_policy_find(NULL, "snapkv", &budgets.policy), WN_OK);
  OK(p->own, wn_budgets_parse(p->own, wn_model_config_get(p->same), "8", &budgets));
  snprintf(prompt, sizeof prompt, "%.*s", 3 + i, client_prompt);
  write_alone(p, prompt, client_tokens(i), 1.1, (uint64_t)i, i % 3 == 0 ? &budgets : NULL, &w);
  wn_budgets_clear(&budgets);
  return strdup(w.text);
}
static void *client_run(void *user) {
  struct client *c = user;
  char body[512];
  client_body(c->number, body, sizeof body);
  char *request = request_of("POST", "/v1/completions", body, NULL);
  c->answer = ask(c->port, request);
  free(request);
  return NULL;
}
static void neighbours(int slots) {
  struct place p;
  struct client clients[CLIENTS];
  pthread_t threads[CLIENTS];
  char *alone[CLIENTS];
  open_place(&p, &(wn_server_options){.slots = slots, .queue = CLIENTS});
  for (int i = 0; i < CLIENTS; i++) {
    clients[i] = (struct client){p.port, i, NULL};
    client_run(&clients[i]);
    alone[i] = client_alone(&p, i);
    char *text = text_of(clients[i].answer, 0);
    assert_string_equal(text, alone[i]);
    free(text), free(clients[i].answer);
  }
  for (int i = 0; i < CLIENTS; i++) assert_int_equal(pthread_create(&threads[i], NULL, client_run, &clients[i]), 0);
  for (int i = 0; i < CLIENTS; i++) {
    pthread_join(threads[i], NULL);
    char *text = text_of(clients[i].answer, 0);
    assert_string_equal(text, alone[i]);
    free(text), free(alone[i]), free(clients[i].answer);
  }
  close_place(&p);
}
static void test_neighbours(void **state) {
  (void)state;
  neighbours(5);
  neighbours(CLIENTS);
}

static void test_scores(void **state) {
  (void)state;
  struct place p;
  open_place(&p, NULL);
  int32_t ids[100], targets[100];
  double expected[100];
  char body[1024] = "{\"prompt\":[", number[16];
  for (int i = 0; i < 100; i++) {
    ids[i] = (int32_t)wn_random_below(9, WN_STREAM_TEST, 1, (uint64_t)i, 128);
    snprintf(number, sizeof number, "%s%d", i ? "," : "", ids[i]);
    strcat(body, number);
  }
  strcat(body, "],\"max_tokens\":0,\"echo\":true,\"logprobs\":3}");
  for (int i = 0; i < 99; i++) targets[i] = ids[i + 1];
  wn_session *s;
  OK(p.own, wn_session_create(p.own, p.same, WN_OPTIONS(wn_session_options, .capacity = 100), &s));
  OK(p.own, wn_session_score(p.own, s, ids, targets, 99,
                             &(wn_scores){.size = sizeof(wn_scores), .log_probability = expected}));
  wn_session_destroy(s);
  char *answer = post(p.port, "/v1/completions", body);
  json_t *j = json_of(answer), *choice = json_array_get(json_object_get(j, "choices"), 0),
         *scores = json_object_get(choice, "logprobs"), *values = json_object_get(scores, "token_logprobs"),
         *top = json_object_get(scores, "top_logprobs");
  assert_int_equal(json_array_size(values), 100);
  assert_int_equal(json_array_size(top), 100);
  assert_true(json_is_null(json_array_get(values, 0)) && json_is_null(json_array_get(top, 0)));
  for (size_t i = 1; i < 100; i++) {
    const double found = json_real_value(json_array_get(values, i));
    assert_true(fabs(found - expected[i - 1]) < 1e-4);
    const char *name;
    json_t *value;
    int own = 0, below = 0;
    json_object_foreach(json_array_get(top, i), name, value) {
      own += json_real_value(value) == found;
      below += json_real_value(value) < found;
    }
    /* three, and the token itself where it is not among them, be they parts of characters or not */
    const size_t count = json_object_size(json_array_get(top, i));
    assert_true(own >= 1 && (count == 3 || (count == 4 && below == 0)));
  }
  assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "length");
  json_decref(j);
  free(answer);
  /* Of the generated tokens each is the most probable one, so its score is the largest. */
  answer = post(p.port, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":9,\"temperature\":0,\"logprobs\":2}");
  j = json_of(answer);
  scores = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "logprobs");
  assert_int_equal(json_array_size(json_object_get(scores, "tokens")), 9);
  for (size_t i = 0; i < 9; i++) {
    const double found = json_real_value(json_array_get(json_object_get(scores, "token_logprobs"), i));
    const char *name;
    json_t *value;
    json_object_foreach(json_array_get(json_object_get(scores, "top_logprobs"), i), name, value)
        assert_true(json_real_value(value) <= found);
  }
  json_decref(j);
  free(answer);
  close_place(&p);
}

/* Offsets of tokens do not depend on a stop string that may have begun: it only delays text. */
static void test_offsets(void **state) {
  (void)state;
  static const char *const stops[] = {"[]", "[\"AAAAAAAB\"]", "[\"AAAAA\"]"};
  struct place p;
  open_place(&p, NULL);
  for (int k = 0; k < 6; k++) { /* also with echo */
    char body[200];
    snprintf(body, sizeof body,
             "{\"prompt\":\"q\",\"max_tokens\":5,\"logit_bias\":{\"65\":100},\"logprobs\":0,\"stop\":%s,\"echo\":%s}",
             stops[k % 3], k < 3 ? "false" : "true");
    char *answer = post(p.port, "/v1/completions", body);
    json_t *j = json_of(answer);
    const json_t *scores = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "logprobs"),
                 *offsets = json_object_get(scores, "text_offset");
    assert_int_equal(json_array_size(offsets), k < 3 ? 5 : 6);
    for (size_t i = 0; i < json_array_size(offsets); i++)
      assert_int_equal(json_integer_value(json_array_get(offsets, i)), i);
    json_decref(j);
    free(answer);
  }
  close_place(&p);
}

/* The token that ends a text has a score like all others: lm-evaluation-harness drops the last one. */
static void test_score_of_the_end(void **state) {
  (void)state;
  struct place p = {.ctx = context_of("cpu", 1), .own = context_of("cpu", 1)};
  const wn_server_options options = {.size = sizeof options};
  char body[300];
  OK(p.ctx, wn_model_load(p.ctx, WN_TEST_DIR "/released/0.2.0/llama", NULL, &p.model));
  OK(p.ctx, wn_tokenizer_load(p.ctx, WN_TEST_DIR "/released/0.2.0/llama", &p.tok));
  OK(p.ctx, wn_server_start(p.ctx, p.model, p.tok, &options, &p.server));
  p.port = wn_server_port(p.server);
  for (int streams = 0; streams < 2; streams++) {
    double last[2];
    for (int ends = 0; ends < 2; ends++) {
      snprintf(body, sizeof body,
               "{\"prompt\":[1,5,6,7],\"logprobs\":1,\"temperature\":0,\"max_tokens\":1,"
               "\"logit_bias\":{\"%d\":100}%s}",
               ends ? wn_tokenizer_eos(p.tok) : 9, streams ? ",\"stream\":true" : ",\"echo\":true");
      char *answer = post(p.port, "/v1/completions", body);
      assert_int_equal(status_of(answer), 200);
      size_t count = 0;
      const char *at = streams ? strstr(answer, "data: ") : ask_body(answer);
      for (; at; at = streams ? strstr(at + 1, "data: ") : NULL) {
        json_t *j = json_loads(at + (streams ? 6 : 0), JSON_DISABLE_EOF_CHECK, NULL);
        const json_t *scores = json_object_get(json_array_get(json_object_get(j, "choices"), 0), "logprobs"),
                     *values = json_object_get(scores, "token_logprobs");
        assert_int_equal(json_array_size(values), json_array_size(json_object_get(scores, "tokens")));
        assert_int_equal(json_array_size(values), json_array_size(json_object_get(scores, "text_offset")));
        count += json_array_size(values);
        if (json_array_size(values) > 0)
          last[ends] = json_real_value(json_array_get(values, json_array_size(values) - 1));
        json_decref(j);
      }
      assert_int_equal(count, streams ? 1 : 5);
      assert_true(last[ends] < 0);
      free(answer);
    }
    assert_true(last[0] != last[1]);
  }
  wn_server_stop(p.server);
  wn_tokenizer_destroy(p.tok);
  wn_model_destroy(p.model);
  wn_context_destroy(p.ctx);
  wn_context_destroy(p.own);
}

static void test_choices_of_sampling(void **state) {
  (void)state;
  struct place p;
  open_place(&p, NULL);
  /* A bias decides; -100 forbids. */
  char *answer =
      post(p.port, "/v1/completions", "{\"prompt\":\"q\",\"max_tokens\":6,\"logit_bias\":{\"65\":100},\"seed\":1}");
  char *text = text_of(answer, 0);
  assert_string_equal(text, "AAAAAA");
  free(text), free(answer);
  answer = post(p.port, "/v1/completions",
                "{\"prompt\":\"q\",\"max_tokens\":6,\"logit_bias\":{\"65\":100,\"66\":99.5},\"frequency_penalty\":1,"
                "\"repetition_penalty\":1.1,"
                "\"temperature\":0,\"seed\":1}");
  text = text_of(answer, 0);
  int as = 0, bs = 0; /* a penalty of 1 makes a token less likely, so they take turns */
  for (const char *c = text; *c; c++) as += *c == 'A', bs += *c == 'B';
  assert_true(as + bs == 6 && as >= 2 && bs >= 2);
  free(text), free(answer);
  answer = post(p.port, "/v1/completions",
                "{\"prompt\":\"q\",\"max_tokens\":6,\"logit_bias\":{\"65\":100},\"stop\":[\"AAA\"],\"echo\":true}");
  text = text_of(answer, 0);
  assert_string_equal(text, "q");
  free(text), free(answer);
  /* min_p 1 leaves only the most probable token, and so does top_p 0. */
  char *greedy = post(p.port, "/v1/completions", "{\"prompt\":\"q\",\"max_tokens\":20,\"temperature\":0}");
  char *one = text_of(greedy, 0);
  static const char *const alone[] = {"\"temperature\":2,\"min_p\":1", "\"temperature\":2,\"top_p\":0",
                                      "\"temperature\":0,\"top_p\":0"};
  for (int i = 0; i < 3; i++) {
    char body[100];
    snprintf(body, sizeof body, "{\"prompt\":\"q\",\"max_tokens\":20,%s}", alone[i]);
    answer = post(p.port, "/v1/completions", body);
    char *other = text_of(answer, 0);
    assert_string_equal(one, other);
    free(other), free(answer);
  }
  free(one), free(greedy);
  close_place(&p);
}

/* What the model declares is the default of requests; fields override it. */
static void test_declared(void **state) {
  (void)state;
  static const int32_t suppressed[] = {65, 66};
  static const char *const same[][2] = {
      {"\"seed\":4", "\"seed\":4,\"temperature\":0"},
      {"\"seed\":4,\"temperature\":1", "\"seed\":4,\"temperature\":1,\"top_k\":9"},
      {"\"seed\":4,\"temperature\":1,\"top_k\":0", NULL},
      {"\"max_tokens\":1,\"logit_bias\":{\"65\":100}", NULL}, /* a bias for a suppressed token */
  };
  struct place p;
  char *answers[4][2] = {{NULL}}, body[300];
  open_place(&p, NULL);
  wn_declared *d = &p.model->declared;
  for (int declared = 0; declared < 2; declared++) {
    if (declared)
      *d = (wn_declared){.given = WN_DECLARED_DO_SAMPLE | WN_DECLARED_TOP_K,
                         .top_k = 9,
                         .suppressed = suppressed,
                         .suppressed_count = 2};
    for (int i = 0; i < 4; i++) {
      const char *fields = declared || !same[i][1] ? same[i][0] : same[i][1];
      snprintf(body, sizeof body, "{\"prompt\":\"q\",\"max_tokens\":12,%s}", fields);
      if (i == 3)
        snprintf(body, sizeof body, "{\"prompt\":\"q\",%s}", fields);
      else if (!declared)
        strcpy(body + strlen(body) - 1, ",\"logit_bias\":{\"65\":-100,\"66\":-100}}");
      char *answer = post(p.port, "/v1/completions", body);
      json_t *j = json_of(answer);
      const char *text = NULL;
      assert_int_equal(json_unpack(j, "{s:[{s:s}]}", "choices", "text", &text), 0);
      answers[i][declared] = strdup(text);
      json_decref(j);
      free(answer);
    }
  }
  for (int i = 0; i < 4; i++) assert_string_equal(answers[i][0], answers[i][1]);
  assert_string_equal(answers[3][1], "A");
  assert_true(strcmp(answers[0][1], answers[1][1]) != 0 && strcmp(answers[1][1], answers[2][1]) != 0);
  for (int i = 0; i < 8; i++) free(answers[i / 2][i % 2]);
  *d = (wn_declared){0};
  close_place(&p);
}

static void test_bad_requests(void **state) {
  (void)state;
  static const struct {
    const char *path, *body;
    int status;
    const char *part;
  } rows[] = {
      {"/v1/completions", "", 400, "not JSON"},
      {"/v1/completions", "[1]", 400, "not an object"},
      {"/v1/completions", "{\"prompt\":\"a\"", 400, "not JSON"},
      {"/v1/completions", "{}", 400, "prompt: missing"},
      {"/v1/completions", "{\"prompt\":\"a\",\"prompt\":\"b\"}", 400, "not JSON"},
      {"/v1/completions", "{\"prompt\":\"a\",\"temprature\":1}", 400, "temprature: this field is not known"},
      {"/v1/completions", "{\"prompt\":\"a\",\"messages\":[]}", 400, "messages: this field is not known"},
      {"/v1/completions", "{\"prompt\":7}", 400, "prompt: expected"},
      {"/v1/completions", "{\"prompt\":[]}", 400, "prompt: expected"},
      {"/v1/completions", "{\"prompt\":[1,256]}", 400, "element 1 is no token"},
      {"/v1/completions", "{\"prompt\":[1,\"a\"]}", 400, "element 1 is no token"},
      {"/v1/completions", "{\"prompt\":[\"a\",3]}", 400, "element 1 is neither"},
      {"/v1/completions", "{\"prompt\":[[]]}", 400, "no tokens in it"},
      {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":-1}", 400, "max_tokens: expected"},
      {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1.5}", 400, "max_tokens: expected"},
      {"/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":200}", 400, "more than the context, 200"},
      {"/v1/completions", "{\"prompt\":\"a\",\"temperature\":\"hot\"}", 400, "temperature: expected"},
      {"/v1/completions", "{\"prompt\":\"a\",\"top_p\":1.01}", 400, "top_p: expected"},
      {"/v1/completions", "{\"prompt\":\"a\",\"repetition_penalty\":0.001}", 400, "repetition_penalty: expected 0 or"},
      {"/v1/completions", "{\"prompt\":\"a\",\"n\":0}", 400, "n: expected"},
      {"/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"n\":100}", 400, "at most 128"},
      {"/v1/completions", "{\"prompt\":\"a\",\"best_of\":3}", 400, "best_of"},
      {"/v1/completions", "{\"prompt\":\"a\",\"stop\":\"\"}", 400, "stop"},
      {"/v1/completions", "{\"prompt\":\"a\",\"stop\":[1]}", 400, "stop"},
      {"/v1/completions", "{\"prompt\":\"a\",\"logprobs\":21}", 400, "logprobs"},
      {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", 400, "logit_bias"},
      {"/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"256\":1}}", 400, "logit_bias"},
      {"/v1/completions", "{\"prompt\":\"a\",\"suffix\":\"b\"}", 400,
       "\"suffix: this field is not served\",\"type\":\"invalid_request_error\",\"param\":\"suffix\""},
      {"/v1/completions", "{\"prompt\":\"a\",\"suffix\":\"none\"}", 400, "suffix: this field is not served"},
      {"/v1/chat/completions", "{\"functions\":[{}]}", 400, "\"param\":\"functions\""},
      {"/v1/chat/completions", "{\"tools\":[],\"tool_choice\":\"none\",\"functions\":[]}", 400, "messages: missing"},
      {"/v1/completions", "{\"suffix\":\"\"}", 400, "prompt: missing"},
      {"/v1/completions", "{\"prompt\":\"a\",\"stream_options\":{\"x\":true}}", 400, "stream_options"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{}}", 400, "budgets are missing"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"budgets\":0}}", 400, "winnow"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"budgets\":\"/etc/passwd\"}}", 400,
       "winnow.budgets: expected"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"budgets\":8,\"policy\":\"best\"}}", 400, "winnow.policy"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"budgets\":8,\"policy\":\"selective\"}}", 400, "selective"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"tau\":1.5}}", 400, "winnow.tau"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"tau\":\"half\"}}", 400, "winnow.tau"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"window\":0}}", 400, "winnow.window"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"window\":9223372036854775807,\"sinks\":5}}", 400,
       "winnow.window"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"window\":8,\"budgets\":8}}", 400, "winnow.window"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"window\":8,\"policy\":\"h2o\"}}", 400, "winnow.window"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"policy\":\"h2o\"}}", 400, "budgets are missing"},
      {"/v1/completions", "{\"prompt\":\"a\",\"x\":" D64 D64 D64 D64 "{\"a\":{\"a\":{\"a\":{\"a\":0", 400,
       "deeper than 260"},
      {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", 400, "no chat template"},
      {"/v1/chat/completions", "{\"messages\":[],\"tools\":[{}]}", 400, "template"},
      {"/tokenize", "{\"prompt\":7}", 400, "prompt: expected a text"},
      {"/tokenize", "{\"prompt\":\"a\",\"add_specialtokens\":false}", 400,
       "/tokenize: \\\"add_specialtokens\\\" is not known"},
      {"/tokenize", "{\"prompt\":\"a\",\"add_special_tokens\":0}", 400, "add_special_tokens: expected true or false"},
      {"/tokenize", "{\"model\":\"a\\u0000b\",\"prompt\":\"a\"}", 400, "model: has a NUL"},
      {"/v1/completions", "{\"prompt\":\"a\",\"stop\":[\"b\",\"a\\u0000b\"]}", 400, "stop: has a NUL"},
      {"/v1/chat/completions", "{\"messages\":[{\"role\":\"us\\u0000er\",\"content\":\"a\"}]}", 400, "role: has a NUL"},
      {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\\u0000\"}]}]}", 400,
       "type: has a NUL"},
      {"/v1/responses", "{\"input\":[{\"type\":\"function_call\",\"arguments\":\"{}\\u0000\"}]}", 400,
       "arguments: has a NUL"},
      {"/detokenize", "{\"tokens\":[30],\"prompt\":\"a\"}", 400, "/detokenize: \\\"prompt\\\" is not known"},
      {"/apply-template", "{\"messages\":[],\"stop\":[]}", 400, "/apply-template: \\\"stop\\\" is not known"},
      {"/detokenize", "{\"tokens\":[300]}", 400, "tokens: expected"},
      {"/detokenize", "{\"tokens\":\"a\"}", 400, "tokens: expected"},
      {"/v1/embeddings", "{}", 400, "input: missing"},
      /* long names are cut between characters */
      {"/v1/completions", "{\"prompt\":\"a\",\"" E40 "\":1}", 400, E10 ": this field is not known"},
      {"/v1/completions", "{\"prompt\":\"a\",\"a" E40 "\":1}", 400, E10 ": this field is not known"},
      {"/v1/completions", "{\"prompt\":\"a\",\"winnow\":{\"a" E40 "\":1}}", 400, "winnow.a" E10},
      {"/v1/completions", "{\"prompt\":\"a\",\"stream_options\":{\"a" E40 "\":1}}", 400, "stream_options: \\\"a" E10},
      {"/v1/completions", "{\"prompt\":\"a\",\"response_format\":{\"type\":\"text\",\"a" E40 "\":1}}", 400,
       E10 "\\\" is not known"},
      {"/v1/completions",
       "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":"
       "{\"properties\":{\"" E40 E40 E40 "\":{\"a" E40 "\":1}}}}}}",
       400, E10 ": \\\"a" E10},
      {"/v1/embeddings", "{\"a" E40 "\":1}", 400, E10 ": this field is not known"},
      {"/tokenize", "{\"" E40 "\":x}", 400, "not JSON"},
  };
  struct place p;
  open_place(&p, NULL);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *answer = post(p.port, rows[i].path, rows[i].body);
    if (status_of(answer) != rows[i].status || !strstr(answer, rows[i].part))
      fail_msg("%s %s: expected %d with \"%s\", found %s", rows[i].path, rows[i].body, rows[i].status, rows[i].part,
               answer);
    if (rows[i].status == 400) {
      json_t *j = json_of(answer), *error = json_object_get(j, "error");
      assert_true(json_is_string(json_object_get(error, "message")));
      assert_non_null(json_object_get(error, "param")); /* present even if null */
      json_decref(j);
    }
    free(answer);
  }
  char *answer = ask_for(p.port, "GET", "/v1/completions");
  assert_int_equal(status_of(answer), 405);
  free(answer);
  close_place(&p);
}

static void test_small_paths(void **state) {
  (void)state;
  struct place p;
  open_place(&p, &(wn_server_options){.name = "a \"model\""});
  char *answer = post(p.port, "/tokenize", "{\"prompt\":\"ab\xC3\xA4\"}");
  assert_non_null(strstr(answer, "\"tokens\":[97,98,195,164],\"count\":4"));
  free(answer);
  answer = post(p.port, "/tokenize", "{\"prompt\":\"a\\u0000b\\u0000\"}"); /* a NUL is a byte like any other */
  assert_non_null(strstr(answer, "\"tokens\":[97,0,98,0],\"count\":4"));
  free(answer);
  answer = post(p.port, "/detokenize", "{\"tokens\":[97,98,195,164,255]}");
  json_t *j = json_of(answer);
  assert_string_equal(json_string_value(json_object_get(j, "prompt")), "ab\xC3\xA4\xEF\xBF\xBD");
  json_decref(j);
  free(answer);
  answer = ask_for(p.port, "GET", "/v1/models");
  j = json_loads(strchr(answer, '{'), JSON_DISABLE_EOF_CHECK, NULL);
  assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(j, "data"), 0), "id")),
                      "a \"model\"");
  json_decref(j);
  free(answer);
  answer = ask_for(p.port, "GET", "/v1/models/a%20%22model%22");
  j = json_loads(strchr(answer, '{'), JSON_DISABLE_EOF_CHECK, NULL);
  assert_int_equal(status_of(answer), 200);
  assert_string_equal(json_string_value(json_object_get(j, "id")), "a \"model\"");
  json_decref(j);
  free(answer);
  answer = ask_for(p.port, "GET", "/v1/models/other/one");
  assert_int_equal(status_of(answer), 404);
  assert_non_null(strstr(answer, "there is no model \\\"other/one\\\""));
  free(answer);
  static const char *const others[] = {"/v1/models/%FF", "/v1/models/a" E40 E40 E40};
  static const char *const said[] = {"model \\\"\\\\xff\\\"", E10 "\\\", only"};
  for (int i = 0; i < 2; i++) {
    char *request = request_of("GET", others[i], "", NULL);
    answer = ask(p.port, request);
    free(request);
    if (status_of(answer) != 404 || !strstr(answer, said[i])) fail_msg("%s: %s", others[i], answer);
    free(answer);
  }
  answer = ask_for(p.port, "POST", "/v1/models/a");
  assert_int_equal(status_of(answer), 405);
  assert_non_null(strstr(answer, "Allow: GET, HEAD\r\n"));
  free(answer);
  answer = ask_for(p.port, "GET", "/v1/models/");
  assert_int_equal(status_of(answer), 404);
  free(answer);
  answer = ask_for(p.port, "GET", "/tokenizer_info");
  assert_non_null(strstr(answer, "\"vocab_size\":256"));
  free(answer);
  answer = ask_for(p.port, "GET", "/metrics");
  assert_non_null(strstr(answer, "\nwinnow_requests_total 0\n"));
  free(answer);
  answer = post(p.port, "/v1/completions", "{\"prompt\":[\"a\\u0000b\"],\"max_tokens\":1}");
  assert_non_null(strstr(answer, "\"prompt_tokens\":3"));
  free(answer);
  close_place(&p);
}

/* A model is named after its file, whose name may be any bytes, unlike JSON text. */
static void test_name(void **state) {
  (void)state;
  struct place p;
  open_place(&p, &(wn_server_options){.name = "caf\xE9"});
  char *answer = ask_for(p.port, "GET", "/v1/models");
  assert_true(status_of(answer) == 200 && strstr(answer, "\"id\":\"caf\xEF\xBF\xBD\""));
  free(answer);
  answer = post(p.port, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}");
  json_t *j = json_of(answer);
  assert_string_equal(json_string_value(json_object_get(j, "model")), "caf\xEF\xBF\xBD");
  json_decref(j);
  free(answer);
  close_place(&p);
}

static void test_key(void **state) {
  (void)state;
  struct place p;
  open_place(&p, &(wn_server_options){.api_key = "s3cret"});
  static const struct {
    const char *path, *head;
    int status;
  } rows[] = {{"/v1/models", NULL, 401},
              {"/v1/models", "Authorization: Bearer s3cre\r\n", 401},
              {"/v1/models", "Authorization: Bearer s3crex\r\n", 401},
              {"/v1/models", "Authorization: s3cret\r\n", 401},
              {"/v1/models", "Authorization: Bearer s3cret\r\n", 200},
              {"/v1/models/winnow", NULL, 401},
              {"/metrics", NULL, 401},
              {"/slots", NULL, 401},
              {"/tokenizer_info", NULL, 401},
              {"/health", NULL, 200}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *request = request_of("GET", rows[i].path, "", rows[i].head), *answer = ask(p.port, request);
    assert_int_equal(status_of(answer), rows[i].status);
    free(request), free(answer);
  }
  static const char *const posts[] = {"/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize",
                                      "/apply-template"};
  for (size_t i = 0; i < sizeof posts / sizeof *posts; i++) {
    char *answer = post(p.port, posts[i], "{\"prompt\":\"a\"}");
    assert_int_equal(status_of(answer), 401);
    free(answer);
  }
  close_place(&p);
}

/* Clients that leave while they wait, while a prompt is read, or during an answer, and a client that never reads. Slots
 * and cache bytes return to zero. */
static void test_clients_that_leave(void **state) {
  (void)state;
  struct place p;
  open_place(&p, &(wn_server_options){.slots = 2, .queue = 16});
  char *request =
      request_of("POST", "/v1/completions",
                 "{\"prompt\":\"gone\",\"max_tokens\":190,\"stream\":true,\"logit_bias\":{\"65\":100}}", NULL);
  char *whole = request_of("POST", "/v1/completions", "{\"prompt\":\"gone\",\"max_tokens\":190,\"n\":8}", NULL);
  for (int round = 0; round < 6; round++) {
    int s[8];
    for (int i = 0; i < 8; i++) {
      s[i] = ask_connect(p.port);
      const char *text = i % 2 ? request : whole;
      assert_int_equal(write(s[i], text, strlen(text)), strlen(text));
    }
    nanosleep(&(struct timespec){.tv_nsec = round * 3000000}, NULL);
    for (int i = 0; i < 8; i++) close(s[i]);
    static const char *const counts[] = {"requests", "running", "waiting", "cache_bytes"};
    for (int i = 0; i < 4; i++) wait_for(p.port, counts[i], 0); /* a request may arrive after its client has left */
  }
  const int silent = ask_connect(p.port);
  assert_int_equal(write(silent, request, strlen(request)), strlen(request));
  char *answer = post(p.port, "/v1/completions", "{\"prompt\":\"here\",\"max_tokens\":5}"); /* not held up */
  assert_int_equal(status_of(answer), 200);
  free(answer);
  close(silent);
  wait_for(p.port, "requests", 0);
  free(request);
  free(whole);
  close_place(&p);
}

/* A full queue says when to try again. If the cache is too small for all, requests wait; one that can never fit is
 * refused. */
static void test_limits(void **state) {
  (void)state;
  struct place p;
  open_place(&p, &(wn_server_options){.slots = 1, .queue = 1});
  char *request = request_of("POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":199,\"n\":64}", NULL);
  const int s = ask_connect(p.port);
  assert_int_equal(write(s, request, strlen(request)), strlen(request));
  wait_for(p.port, "requests", 1);
  char *answer = post(p.port, "/v1/completions", "{\"prompt\":\"b\"}");
  assert_true(status_of(answer) == 429 && strstr(answer, "Retry-After: 1"));
  free(answer);
  close(s);
  free(request);
  close_place(&p);

  struct client clients[6];
  pthread_t threads[6];
  open_place(&p, &(wn_server_options){.slots = 6, .cache_memory = 30000});
  for (int i = 0; i < 6; i++) {
    clients[i] = (struct client){p.port, i, NULL};
    assert_int_equal(pthread_create(&threads[i], NULL, client_run, &clients[i]), 0);
  }
  for (int i = 0; i < 6; i++) {
    pthread_join(threads[i], NULL);
    assert_int_equal(status_of(clients[i].answer), 200);
    free(clients[i].answer);
  }
  answer = post(p.port, "/v1/completions", "{\"prompt\":\"b\",\"max_tokens\":199}");
  assert_true(status_of(answer) == 400 && strstr(answer, "the request's cache needs"));
  free(answer);
  answer = post(p.port, "/v1/completions", /* a budget makes room */
                "{\"prompt\":\"b\",\"max_tokens\":199,\"winnow\":{\"budgets\":16,\"policy\":\"window\"}}");
  json_t *j = json_of(answer);
  assert_true(json_is_array(json_object_get(j, "choices")));
  json_decref(j);
  free(answer);
  close_place(&p);
}

static void test_stop(void **state) {
  (void)state;
  struct place p;
  open_place(&p, NULL);
  char *request =
      request_of("POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":199,\"n\":64,\"stream\":true}", NULL);
  const int s = ask_connect(p.port);
  assert_int_equal(write(s, request, strlen(request)), strlen(request));
  wait_for(p.port, "requests", 1);
  close_place(&p); /* during an answer */
  free(ask_read(s));
  free(request);
  wn_server_stop(NULL);
  wn_context *ctx = context_of("cpu", 1);
  wn_model *model = bytes_model(ctx, CONTEXT);
  wn_tokenizer *tok;
  wn_server *server;
  OK(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  wn_server_options o = {.size = sizeof o, .address = "nowhere"};
  assert_refused(ctx, wn_server_start(ctx, model, tok, &o, &server), WN_ERR_ARGUMENT, "not an IP address");
  o = (wn_server_options){.size = sizeof o, .api_key = ""};
  assert_refused(ctx, wn_server_start(ctx, model, tok, &o, &server), WN_ERR_ARGUMENT, "key");
  wn_tokenizer_destroy(tok);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_same_as_the_library),
      cmocka_unit_test(test_window_and_tau),
      cmocka_unit_test(test_unserved),
      cmocka_unit_test(test_streams),
      cmocka_unit_test(test_neighbours),
      cmocka_unit_test(test_scores),
      cmocka_unit_test(test_offsets),
      cmocka_unit_test(test_score_of_the_end),
      cmocka_unit_test(test_choices_of_sampling),
      cmocka_unit_test(test_bad_requests),
      cmocka_unit_test(test_declared),
      cmocka_unit_test(test_small_paths),
      cmocka_unit_test(test_name),
      cmocka_unit_test(test_key),
      cmocka_unit_test(test_clients_that_leave),
      cmocka_unit_test(test_limits),
      cmocka_unit_test(test_stop),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
