/* Selection on synthetic tasks: the counts of tokens agree with counts by hand, the shares with F and each task's own
 * rules, and so do the shares of variable names. */
#include "model/models.h"

#include "support.h"
#include "winnow/selection.h"

enum { LONGEST = 40, SEQUENCES = 6 };

struct seen {
  float F[2][LONGEST][LONGEST];
};
static wn_status keep(void *user, const wn_selection_layer *layer) {
  struct seen *s = user;
  for (int64_t i = 0; i < layer->T; i++)
    for (int64_t j = 0; j < layer->T; j++) s->F[layer->layer][i][j] = layer->F[i * layer->T + j];
  return WN_OK;
}

static struct wn_model *model_for(wn_context *ctx, const wn_data_config *task) {
  static const struct model_case selective = {
      .position = WN_POS_LEARNED, .ffn = WN_FFN_SWIGLU, .kv_heads = 4, .sel = {PAPER}};
  wn_model_config c = model_case_config(&selective);
  wn_data_config_requirements(task, &c.vocab_size, &c.context);
  c.layers = 2;
  return model_of(ctx, &c, WN_F32);
}

/* Sums over a sequence: [0] of tokens that are no longer needed, [1] of those that still are; and how many there are.
 */
struct sums {
  double selected[2], any[2];
  uint64_t count[2];
};
static void add(struct sums *s, const struct seen *f, int64_t layer, int64_t row, int64_t j, bool needed) {
  const double most = fmax((double)f->F[0][row][j], (double)f->F[1][row][j]);
  s->count[needed]++;
  s->selected[needed] += 1 - exp(-(double)f->F[layer][row][j]) > 0.5;
  s->any[needed] += 1 - exp(-most) > 0.5;
}

/* Each task's rule, written a second time. tokens: one sequence of length n. */
static void of_parity(struct sums *s, const struct seen *f, int64_t layer, const int32_t *tokens, int64_t n) {
  (void)tokens;
  for (int64_t row = 2; row < n - 1; row += 2)
    for (int64_t j = 1; j < row; j++) add(s, f, layer, row, j, j + 1 == row);
}
static void of_copy(struct sums *s, const struct seen *f, int64_t layer, const int32_t *tokens, int64_t n) {
  int64_t middle = 1;
  while (tokens[middle] != 1) middle++; /* the end of the input */
  for (int64_t row = middle; row + 2 < n; row++)
    for (int64_t j = 1; j < middle; j++) add(s, f, layer, row, j, j >= row - middle + 1);
}
static void of_assignments(struct sums *s, const struct seen *f, int64_t layer, const int32_t *tokens, int64_t n) {
  int64_t last[3] = {-1, -1, -1};
  for (int64_t j = 0; j < n - 1; j += 2) last[tokens[j]] = j;
  for (int64_t j = 0; j < n - 1; j += 2) add(s, f, layer, n - 1, j + 1, last[tokens[j]] == j);
}

static void check(wn_data_kind kind,
                  void (*of)(struct sums *, const struct seen *, int64_t, const int32_t *, int64_t)) {
  wn_context *ctx = context_of("cpu", 1);
  const wn_data_config task = {.kind = kind, .variables = 3, .values = 9, .assignments = 12, .max_length = 12};
  struct wn_model *model = model_for(ctx, &task);
  const int64_t T = model->config.context;
  wn_data_source *source;
  wn_task_selection *r;
  struct seen *f = calloc(1, sizeof *f);
  int32_t tokens[LONGEST], targets[LONGEST];
  struct sums sums[2] = {{{0}, {0}, {0}}, {{0}, {0}, {0}}};
  OK(ctx, wn_data_source_create(ctx, &task, "val", T, (int32_t)model->config.vocab_size, &source));
  for (uint64_t i = 0; i < SEQUENCES; i++) {
    OK(ctx, wn_data_source_batch(ctx, source, 3, i, 1, tokens, targets, NULL));
    int64_t n = T;
    if (kind == WN_DATA_COPY)
      for (n = 1; tokens[n - 1] != 2;) n++; /* up to the end token */
    const wn_selection_options options = {.size = sizeof options, .layer = keep, .user = f};
    OK(ctx, wn_analyze_selection(ctx, model, tokens, n, &options, NULL));
    for (int64_t l = 0; l < 2; l++) of(&sums[l], f, l, tokens, n);
  }
  OK(ctx, wn_analyze_task_selection(ctx, model, &task, SEQUENCES, 3, &r));
  assert_int_equal(r->sequences, SEQUENCES);
  for (int64_t l = 0; l < 2; l++) {
    const wn_task_share *const shares[2] = {&r->layer[l].spent, &r->layer[l].needed};
    const wn_task_share *const any[2] = {&r->any.spent, &r->any.needed};
    for (int k = 0; k < 2; k++) {
      const double n = (double)sums[l].count[k];
      assert_true(n > 0);
      assert_int_equal(shares[k]->count, sums[l].count[k]);
      assert_int_equal(any[k]->count, sums[l].count[k]);
      assert_true(fabs(shares[k]->selected - sums[l].selected[k] / n) < 1e-9);
      assert_true(fabs(any[k]->selected - sums[l].any[k] / n) < 1e-9);
    }
  }
  /* By hand. Parity: rows 4, 6, 8, 10 have 2 + 4 + 6 + 8 bits before their last two. Assignments: 12 a sequence. */
  if (kind == WN_DATA_PARITY) assert_true(r->any.spent.count == 20 * SEQUENCES && r->any.needed.count == 5 * SEQUENCES);
  if (kind == WN_DATA_VARIABLE_ASSIGNMENT) {
    assert_int_equal(r->any.spent.count + r->any.needed.count, 12 * SEQUENCES);
    /* Names as well, except a sequence's first token, which is never masked. */
    assert_int_equal(r->any.spent_names.count + r->any.needed_names.count, 11 * SEQUENCES);
  }
  wn_task_selection_destroy(r);
  wn_data_source_destroy(source);
  free(f);
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_parity(void **state) {
  (void)state;
  check(WN_DATA_PARITY, of_parity);
}
static void test_copy(void **state) {
  (void)state;
  check(WN_DATA_COPY, of_copy);
}
static void test_assignments(void **state) {
  (void)state;
  check(WN_DATA_VARIABLE_ASSIGNMENT, of_assignments);
}

static void test_refused(void **state) {
  (void)state;
  wn_context *ctx = context_of("cpu", 1);
  wn_data_config task = {.kind = WN_DATA_PARITY, .max_length = 8};
  struct wn_model *model = model_for(ctx, &task);
  wn_task_selection *r;
  task.kind = WN_DATA_TOKENS;
  assert_refused(ctx, wn_analyze_task_selection(ctx, model, &task, 1, 0, &r), WN_ERR_UNSUPPORTED, "no synthetic task");
  wn_model_config plain = model->config;
  wn_model_destroy(model);
  plain.attention.selective.enabled = false;
  model = model_of(ctx, &plain, WN_F32);
  task.kind = WN_DATA_PARITY;
  assert_refused(ctx, wn_analyze_task_selection(ctx, model, &task, 1, 0, &r), WN_ERR_UNSUPPORTED, "selective");
  wn_model_destroy(model);
  wn_context_destroy(ctx);
}

static void test_names(void **state) {
  (void)state;
  char name[16];
  const wn_data_config assignment = {
      .kind = WN_DATA_VARIABLE_ASSIGNMENT, .variables = 3, .values = 1000, .assignments = 2};
  static const char *const names[] = {"X=", "Y=", "Z=", "0", "1"};
  for (int i = 0; i < 5; i++) {
    assert_true(wn_data_token_name(&assignment, i, name, sizeof name));
    assert_string_equal(name, names[i]);
  }
  assert_true(wn_data_token_name(&assignment, 180, name, sizeof name));
  assert_string_equal(name, "177");
  assert_false(wn_data_token_name(&assignment, 1003, name, sizeof name));
  assert_false(wn_data_token_name(&assignment, -1, name, sizeof name));
  assert_false(wn_data_token_name(&assignment, 180, name, 3));
  const wn_data_config many = {.kind = WN_DATA_VARIABLE_ASSIGNMENT, .variables = 40, .values = 2, .assignments = 2};
  assert_true(wn_data_token_name(&many, 39, name, sizeof name));
  assert_string_equal(name, "v39=");
  const wn_data_config copy = {.kind = WN_DATA_COPY, .values = 26, .max_length = 4};
  static const char *const marks[] = {"<BOS>", "<EOI>", "<EOS>", "a", "b"};
  for (int i = 0; i < 5; i++) {
    assert_true(wn_data_token_name(&copy, i, name, sizeof name));
    assert_string_equal(name, marks[i]);
  }
  const wn_data_config parity = {.kind = WN_DATA_PARITY, .max_length = 4};
  assert_true(wn_data_token_name(&parity, 1, name, sizeof name));
  assert_string_equal(name, "1");
  const wn_data_config tokens = {.kind = WN_DATA_TOKENS};
  assert_false(wn_data_token_name(&tokens, 1, name, sizeof name));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_parity), cmocka_unit_test(test_copy),
                                     cmocka_unit_test(test_assignments), cmocka_unit_test(test_refused),
                                     cmocka_unit_test(test_names)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
