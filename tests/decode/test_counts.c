/* How many tokens a threshold keeps during generation: the counts equal those of an independent program that works on
 * full attention matrices (tools/make-count-goldens.py), for every instruction set, every division of the prompt into
 * pieces, and every way to mark control tokens. Also, the positions of a prompt's tokens in its text. */
#include "support.h"

#include <jansson.h>
#include <string.h>
#include "winnow/generate.h"
#include "policies.h"

enum { DOCUMENTS = 3, DRAWN = 12, LONGEST = 40, CELLS = 12, V = 31 };

struct golden {
  wn_context *ctx;
  wn_model *model;
  int32_t prompts[DOCUMENTS][LONGEST], control[DOCUMENTS][LONGEST], drawn[DOCUMENTS][DRAWN];
  int32_t counts[DOCUMENTS][DRAWN][CELLS], content[DOCUMENTS][DRAWN];
  int64_t length[DOCUMENTS];
};

static void take(const wn_safetensors *file, const char *name, void *out, size_t bytes) {
  const wn_safetensors_entry *e = wn_safetensors_find(file, name);
  if (!e || e->bytes != bytes) fail_msg("expected.safetensors: %s", name);
  memcpy(out, e->data, bytes);
}

static void golden_open(struct golden *g, const char *backend) {
  char path[4096];
  wn_safetensors *file = NULL;
  const wn_context_options options = {.size = sizeof options, .threads = 2, .backend = backend};
  memset(g, 0, sizeof *g);
  assert_int_equal(wn_context_create(&options, &g->ctx), WN_OK);
  snprintf(path, sizeof path, "%s/golden/counts", WN_TEST_DIR);
  assert_ok(g->ctx, wn_model_load(g->ctx, path, NULL, &g->model));
  snprintf(path, sizeof path, "%s/golden/counts/expected.safetensors", WN_TEST_DIR);
  assert_ok(g->ctx, wn_safetensors_open(g->ctx, path, &file));
  take(file, "prompts", g->prompts, sizeof g->prompts);
  take(file, "control", g->control, sizeof g->control);
  take(file, "drawn", g->drawn, sizeof g->drawn);
  take(file, "counts", g->counts, sizeof g->counts);
  take(file, "content", g->content, sizeof g->content);
  wn_safetensors_close(file);
  for (int d = 0; d < DOCUMENTS; d++)
    while (g->length[d] < LONGEST && g->prompts[d][g->length[d]] >= 0) g->length[d]++;
}

static void golden_close(struct golden *g) {
  wn_model_destroy(g->model);
  wn_context_destroy(g->ctx);
}

/* Compares a piece with the golden's rows. */
struct pieces {
  const struct golden *g;
  int document;
};
static bool on_piece(void *user, const wn_generate_piece *piece) {
  const struct pieces *p = user;
  const struct golden *g = p->g;
  const int d = p->document;
  assert_int_equal(piece->id, g->drawn[d][piece->index]);
  assert_int_equal(piece->context, g->length[d] + piece->index);
  assert_int_equal(piece->content, g->content[d][piece->index]);
  for (int k = 0; k < CELLS; k++)
    if (piece->counts[k] != g->counts[d][piece->index][k])
      fail_msg("document %d, token %lld, layer %d, head %d: %d kept, expected %d", d, (long long)piece->index, k / 4,
               k % 4, piece->counts[k], g->counts[d][piece->index][k]);
  return true;
}

/* One control token is marked by its id, 7; the others by their positions. */
static void check_documents(const char *backend, const char *budget) {
  struct golden g;
  golden_open(&g, backend);
  const int32_t by_id = 7;
  assert_ok(g.ctx, wn_model_set_control_tokens(g.ctx, g.model, &by_id, 1));
  for (int d = 0; d < DOCUMENTS; d++) {
    uint8_t control[LONGEST];
    wn_budgets budgets;
    wn_generate_options o;
    wn_generate_result result;
    struct pieces p = {&g, d};
    for (int i = 0; i < LONGEST; i++) control[i] = g.control[d][i] && g.prompts[d][i] != 7;
    budgets_init(&budgets);
    assert_int_equal(wn_policy_find(NULL, "h2o", &budgets.policy), WN_OK);
    budgets.per_kv_head = budget && strchr(budget, ':');
    wn_generate_options_init(&o, sizeof o);
    if (budget) assert_ok(g.ctx, wn_budgets_parse(g.ctx, wn_model_config_get(g.model), budget, &budgets));
    o.prompt = g.prompts[d], o.prompt_count = g.length[d];
    o.sampling.temperature = 0;
    o.max_tokens = DRAWN;
    o.control = control;
    o.counts = true;
    o.piece = on_piece, o.user = &p;
    o.budgets = budget ? &budgets : NULL;
    assert_ok(g.ctx, wn_generate(g.ctx, g.model, &o, &result));
    assert_int_equal(result.tokens, DRAWN);
    wn_budgets_clear(&budgets);
  }
  golden_close(&g);
}

static void test_equals_full_matrices(void **state) {
  (void)state;
  check_documents("ref", NULL);
  check_documents("cpu", NULL);
}

/* A budget that is never reached runs other code: row by row, with each head's own choice. */
static void test_equals_under_wide_budgets(void **state) {
  (void)state;
  check_documents("cpu", "64");
  check_documents("cpu", "64:60,64:60,64");
}

/* The counts do not depend on how a prompt is divided, down to single tokens. */
static void test_pieces_of_a_prompt(void **state) {
  (void)state;
  struct golden g;
  golden_open(&g, "cpu");
  const wn_session_options options = {
      .size = sizeof options, .sequences = 1, .capacity = 64, .counts = true, .control_marks = true};
  for (int64_t chunk = 1; chunk <= 9; chunk += 4) {
    wn_session *s;
    int32_t counts[CELLS];
    int64_t context, content;
    assert_ok(g.ctx, wn_session_create(g.ctx, g.model, &options, &s));
    for (int64_t i = 0; i < g.length[1]; i++)
      if (g.control[1][i]) assert_ok(g.ctx, wn_session_mark_control(g.ctx, s, 0, i, 1));
    assert_ok(g.ctx, wn_session_feed(g.ctx, s, g.prompts[1], g.length[1], chunk, NULL));
    assert_ok(g.ctx, wn_session_counts(g.ctx, s, 0, counts, &context, &content));
    assert_memory_equal(counts, g.counts[1][0], sizeof counts);
    assert_int_equal(context, g.length[1]);
    assert_int_equal(content, g.content[1][0]);
    wn_session_reset(s); /* forgets marked control tokens */
    assert_ok(g.ctx, wn_session_feed(g.ctx, s, g.prompts[1], g.length[1], chunk, NULL));
    assert_ok(g.ctx, wn_session_counts(g.ctx, s, 0, NULL, NULL, &content));
    assert_int_equal(content, g.length[1]);
    wn_session_destroy(s);
  }
  golden_close(&g);
}

static void test_refused(void **state) {
  (void)state;
  struct golden g;
  golden_open(&g, "cpu");
  wn_session *s;
  int32_t counts[CELLS];
  const uint8_t control[LONGEST] = {0};
  wn_session_options o = {.size = sizeof o, .sequences = 1, .tau = WN_TAU_NONE, .counts = true};
  assert_refused(g.ctx, wn_session_create(g.ctx, g.model, &o, &s), WN_ERR_UNSUPPORTED, "threshold");
  o.counts = false, o.control_marks = true;
  assert_refused(g.ctx, wn_session_create(g.ctx, g.model, &o, &s), WN_ERR_UNSUPPORTED, "threshold");
  o.tau = 0, o.control_marks = false;
  assert_ok(g.ctx, wn_session_create(g.ctx, g.model, &o, &s));
  assert_refused(g.ctx, wn_session_counts(g.ctx, s, 0, counts, NULL, NULL), WN_ERR_ARGUMENT, "without counts");
  assert_refused(g.ctx, wn_session_mark_control(g.ctx, s, 0, 0, 1), WN_ERR_ARGUMENT, "control_marks");
  wn_generate_options options;
  wn_generate_options_init(&options, sizeof options);
  options.prompt = g.prompts[0], options.prompt_count = 4, options.counts = true;
  assert_refused(g.ctx, wn_session_generate(g.ctx, s, &options, NULL), WN_ERR_ARGUMENT, "counts");
  options.counts = false, options.prompt = NULL, options.control = control;
  assert_refused(g.ctx, wn_session_generate(g.ctx, s, &options, NULL), WN_ERR_ARGUMENT, "prompt");
  wn_session_destroy(s);
  o.counts = o.control_marks = true;
  assert_ok(g.ctx, wn_session_create(g.ctx, g.model, &o, &s));
  assert_refused(g.ctx, wn_session_counts(g.ctx, s, 0, counts, NULL, NULL), WN_ERR_ARGUMENT, "nothing has been fed");
  assert_refused(g.ctx, wn_session_mark_control(g.ctx, s, 1, 0, 1), WN_ERR_ARGUMENT, "sequence 1");
  assert_refused(g.ctx, wn_session_mark_control(g.ctx, s, 0, 60, 5), WN_ERR_ARGUMENT, "60 to 64");
  assert_ok(g.ctx, wn_session_feed(g.ctx, s, g.prompts[0], 4, 0, NULL));
  assert_refused(g.ctx, wn_session_mark_control(g.ctx, s, 0, 3, 1), WN_ERR_ARGUMENT, "still to come");
  assert_refused(g.ctx, wn_session_counts(g.ctx, s, 1, counts, NULL, NULL), WN_ERR_ARGUMENT, "sequence 1");
  wn_session_destroy(s);
  golden_close(&g);
}

/* ---- positions of tokens in their text ---- */

/* Token i covers from[i]..to[i] of the text. */
static void places_are(wn_context *ctx, const wn_tokenizer *tok, const char *said, const char *text,
                       const int64_t (*at)[2], size_t n) {
  int32_t *ids;
  size_t count;
  int64_t begin[64], end[64];
  assert_ok(ctx, wn_tokenizer_encode(ctx, tok, said, strlen(said), false, false, &ids, &count));
  assert_int_equal(count, n);
  assert_ok(ctx, wn_tokens_align(ctx, tok, ids, count, text, strlen(text), begin, end));
  for (size_t i = 0; i < n; i++)
    if (begin[i] != at[i][0] || end[i] != at[i][1])
      fail_msg("\"%s\", token %zu: %lld to %lld, expected %lld to %lld", text, i, (long long)begin[i],
               (long long)end[i], (long long)at[i][0], (long long)at[i][1]);
  wn_tokens_free(ids);
}

static void test_places_of_bytes(void **state) {
  (void)state;
  wn_context *ctx = NULL;
  wn_tokenizer *tok = NULL;
  int64_t begin[8], end[8];
  assert_int_equal(wn_context_create(NULL, &ctx), WN_OK);
  assert_ok(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  places_are(ctx, tok, "a b", "a b", (const int64_t[][2]){{0, 1}, {1, 1}, {2, 3}}, 3);
  /* With text around it; at its last occurrence; and with white space that the tokenizer changes. */
  places_are(ctx, tok, "ab|ab", "ab", (const int64_t[][2]){{-1, -1}, {-1, -1}, {-1, -1}, {0, 1}, {1, 2}}, 5);
  places_are(ctx, tok, "<a b>", " a\n\tb ", (const int64_t[][2]){{-1, -1}, {1, 2}, {2, 2}, {4, 5}, {-1, -1}}, 5);
  /* A character of two bytes is complete with its second one. */
  places_are(ctx, tok, "x\xc3\xa9", "x\xc3\xa9", (const int64_t[][2]){{0, 1}, {1, 1}, {1, 3}}, 3);
  const int32_t ids[] = {'a', 'b'};
  assert_refused(ctx, wn_tokens_align(ctx, tok, ids, 2, "ac", 2, begin, end), WN_ERR_UNSUPPORTED, "white space");
  assert_ok(ctx, wn_tokens_align(ctx, tok, ids, 2, "", 0, begin, end));
  assert_true(begin[0] == -1 && begin[1] == -1);
  wn_tokenizer_destroy(tok);
  wn_context_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_equals_full_matrices),
                                     cmocka_unit_test(test_equals_under_wide_budgets),
                                     cmocka_unit_test(test_pieces_of_a_prompt), cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_places_of_bytes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
