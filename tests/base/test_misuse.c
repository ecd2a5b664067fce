/* Calls every public function that takes pointers with each of them NULL in turn, and with handles that are destroyed
 * or of another type. None may crash, and where the header does not allow NULL the status is WN_ERR_ARGUMENT. The calls
 * are generated from the headers (misuse_calls.inc), so a new function is covered at once. */
#include "support.h"

#include <math.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "winnow/winnow.h"

union value {
  void *p;
  int64_t n;
};
struct row {
  const char *name;
  bool status;
  int count;
  struct {
    const char *type, *name;
    size_t size; /* of an options struct; its first field */
  } parameter[10];
  int64_t (*call)(const union value *x);
};
#include "misuse_calls.inc"
enum { ROWS = sizeof rows / sizeof *rows };

/* Where NULL is allowed or gets another status. */
static const char *const allowed[] = {"wn_context_create.options",
                                      "wn_allocator_set.allocator",
                                      "wn_eval.options",
                                      "wn_eval_text.options",
                                      "wn_eval_tokens.options",
                                      "wn_score_requests.options",
                                      "wn_analyze_spans.input",
                                      "wn_analyze_sweep.input",
                                      "wn_analyze_meaning.options",
                                      "wn_analyze_selection.loss",
                                      "wn_model_logits.options",
                                      "wn_session_create.options",
                                      "wn_session_copy.rows",
                                      "wn_session_repeat_with.after",
                                      "wn_budgets_init.attention",
                                      "wn_session_feed.logits",
                                      "wn_session_read_context.logits",
                                      "wn_session_encode.input_count",
                                      "wn_session_embed.options",
                                      "wn_model_save.tok",
                                      "wn_model_convert.result",
                                      "wn_recipe_load.path",
                                      "wn_adapt_recipe.path",
                                      "wn_dist_join.lost",
                                      "wn_dist_join.user",
                                      "wn_train_run.recipe",
                                      "wn_train_run.progress",
                                      "wn_prune_search.progress",
                                      "wn_prune_search.out",
                                      "wn_prune_compare.progress",
                                      "wn_prune_measure.budgets",
                                      "wn_prune_measure.counted",
                                      "wn_prune_measure_rows.budgets",
                                      "wn_constraint_create_json.schema",
                                      "wn_session_generate.result",
                                      "wn_generate.result",
                                      "wn_chat_default_system.jinja",
                                      "wn_page_save.bytes",
                                      "wn_page_html.bytes",
                                      "wn_page_add_texts.command",
                                      "wn_report_save.out",
                                      "wn_data_source_batch.doc_start",
                                      "wn_trainer_step.doc_start",
                                      "wn_model_load.options",
                                      "wn_token_file_write.layout",
                                      "wn_trainer_step.progress",
                                      "wn_safetensors_write.metadata",
                                      "wn_safetensors_write_made.metadata",
                                      "wn_task_run.result",
                                      "wn_verify.report",
                                      "wn_token_file_verify.has",
                                      "wn_safetensors_verify.has",
                                      "wn_gguf_verify.has",
                                      "wn_prune_curve_save_svg.title",
                                      "wn_meaning_save_svg.title",
                                      "wn_prune_comparison_save_svg.title",
                                      "wn_meaning_fits_save_svg.title",
                                      "wn_sweep_save_svg.title",
                                      "wn_look_save_svg.title",
                                      "wn_survival_save_svg.title"};

static struct {
  wn_context *ctx;
  wn_model *model;
  wn_session *session;
  wn_tokenizer *tok;
  wn_data_source *source;
  wn_gguf_values *values;
  wn_page *page;
  wn_text_stream *stream;
  wn_trainer *trainer;
} good;
static char folder[512], path[600];
static char (*places)[1 << 16]; /* zeroed memory that a call may read and write */
static struct found {
  char at[128];    /* the call under way */
  char wrong[512]; /* the first wrong answer */
} * found;

static void good_init(void) {
  wn_model_config c;
  wn_recipe r;
  wn_train_config t;
  assert_int_equal(
      wn_context_create(&(wn_context_options){.size = sizeof(wn_context_options), .threads = 1}, &good.ctx), WN_OK);
  wn_model_config_init(&c);
  c.vocab_size = 256, c.context = 8, c.layers = 1, c.width = 16, c.heads = 2;
  wn_recipe_init(&r);
  t = r.train;
  t.batch = t.accumulate = 1, t.context = 8;
  r.data.kind = WN_DATA_COPY, r.data.values = 4, r.data.max_length = 2;
  assert_ok(good.ctx, wn_model_create(good.ctx, &c, 1, &good.model));
  assert_ok(good.ctx,
            wn_session_create(good.ctx, good.model, WN_OPTIONS(wn_session_options, .capacity = 8), &good.session));
  assert_ok(good.ctx, wn_tokenizer_load(good.ctx, "bytes", &good.tok));
  assert_ok(good.ctx, wn_data_source_create(good.ctx, &r.data, "val", 8, 256, &good.source));
  assert_ok(good.ctx, wn_gguf_values_create(good.ctx, &good.values));
  assert_ok(good.ctx, wn_text_stream_create(good.ctx, good.tok, &good.stream));
  assert_ok(good.ctx, wn_trainer_create(good.ctx, good.model, &t, &good.trainer));
  const wn_page_options page = {.size = sizeof page, .title = "page"};
  assert_ok(good.ctx, wn_page_create(good.ctx, &page, &good.page));
}

/* A live handle of that type; NULL where there is none or the type is no handle. */
static void *handle_of(const char *type) {
  const struct {
    const char *name;
    void *handle;
  } handles[] = {{"wn_context *", good.ctx},   {"wn_model *", good.model},        {"wn_session *", good.session},
                 {"wn_tokenizer *", good.tok}, {"wn_data_source *", good.source}, {"wn_gguf_values *", good.values},
                 {"wn_page *", good.page},     {"wn_text_stream *", good.stream}, {"wn_trainer *", good.trainer}};
  if (!strncmp(type, "const ", 6)) type += 6;
  for (size_t i = 0; i < sizeof handles / sizeof *handles; i++)
    if (!strcmp(handles[i].name, type)) return handles[i].handle;
  return NULL;
}

static int64_t nothing(void) { /* a callback */
  return 0;
}

static bool is_pointer(const struct row *r, int i) {
  return strchr(r->parameter[i].type, '*') || strstr(r->parameter[i].type, "_fn");
}

static void good_values(const struct row *r, union value *x) {
  for (int i = 0; i < r->count; i++) {
    const char *type = r->parameter[i].type;
    if (!is_pointer(r, i)) {
      x[i].n = 1;
      continue;
    }
    x[i].p = handle_of(type);
    if (x[i].p) continue;
    x[i].p = places[i] + 64; /* no handle's mark lies before it */
    if (!strchr(type, '*') || strchr(type, '(')) x[i].p = (void *)(uintptr_t)nothing;
    if (!strcmp(type, "const char *")) x[i].p = path;
    if (r->parameter[i].size) memcpy(x[i].p, &r->parameter[i].size, sizeof(size_t));
    if (!strcmp(type, "const wn_model_config *") || !strcmp(type, "wn_model_config *")) wn_model_config_init(x[i].p);
    if (!strcmp(type, "const wn_recipe *")) wn_recipe_init(x[i].p);
    if (!strcmp(type, "const wn_budgets *")) wn_budgets_init(x[i].p, NULL);
  }
}

static bool is_allowed(const struct row *r, int i) {
  char name[128];
  snprintf(name, sizeof name, "%s.%s", r->name, r->parameter[i].name);
  if (!strcmp(r->parameter[i].name, "user") || !strcmp(r->parameter[i].type, "wn_context *")) return true;
  for (size_t k = 0; k < sizeof allowed / sizeof *allowed; k++)
    if (!strcmp(allowed[k], name)) return true;
  return false;
}

static void try_one(const struct row *r, int i, const char *what, void *p, bool must_refuse) {
  union value x[10];
  memset(places, 0, 10 * sizeof *places);
  good_values(r, x);
  x[i].p = p;
  snprintf(found->at, sizeof found->at, "%s: %s is %s", r->name, r->parameter[i].name, what);
  const int64_t status = r->call(x);
  if (must_refuse && r->status && status != WN_ERR_ARGUMENT && !found->wrong[0])
    snprintf(found->wrong, sizeof found->wrong, "%.128s: %s: %.200s", found->at, wn_status_name((wn_status)status),
             wn_context_error(good.ctx));
}

/* In a child process, since it may crash. */
static void try_row(const struct row *r) {
  for (int i = 0; i < r->count; i++) {
    if (!is_pointer(r, i)) continue;
    try_one(r, i, "NULL", NULL, !is_allowed(r, i));
    void *handle = handle_of(r->parameter[i].type);
    if (!handle || strstr(r->name, "context")) continue;
    void *other = handle == good.tok ? (void *)good.model : (void *)good.tok;
    try_one(r, i, "another handle", other, true);
  }
  /* Last, because the call destroys it. */
  void *first = r->count && is_pointer(r, 0) ? handle_of(r->parameter[0].type) : NULL;
  if (first == good.tok)
    wn_tokenizer_destroy(first);
  else if (first == good.session)
    wn_session_destroy(first);
  else if (first == good.page)
    wn_page_destroy(first);
  else if (first == good.source)
    wn_data_source_destroy(first);
  else
    return;
  try_one(r, 0, "destroyed", first, true);
}

static void test_all(void **state) {
  (void)state;
  int failed = 0;
  for (int n = 0; n < ROWS; n++) {
    if (!strcmp(rows[n].name, "wn_tokens_free") || !strcmp(rows[n].name, "wn_text_free")) continue;
    memset(found, 0, sizeof *found);
    fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      for (int k = 0; k < 5; k++) signal((const int[]){SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}[k], SIG_DFL);
      if (chdir(folder) != 0) _exit(3);
      try_row(&rows[n]);
      _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status != 0) print_error("%s: crashed (status %d)\n", found->at, status);
    if (found->wrong[0]) print_error("%s\n", found->wrong);
    failed += status != 0 || found->wrong[0];
  }
  assert_int_equal(failed, 0);
}

static void test_enums(void **state) {
  (void)state;
  for (int bad = -1; bad < 1000; bad += 500) {
    if (bad == 499) bad = 999;
    assert_non_null(wn_gguf_type_name((wn_gguf_type)bad));
    assert_int_equal(wn_gguf_block_weights((wn_gguf_type)bad), 0);
    assert_int_equal(wn_gguf_block_bytes((wn_gguf_type)bad), 0);
    assert_false(wn_gguf_can_encode((wn_gguf_type)bad));
    assert_non_null(wn_status_name((wn_status)bad));
    assert_non_null(wn_dtype_name((wn_dtype)bad));
    assert_int_equal(wn_dtype_size((wn_dtype)bad), 0);
    assert_non_null(wn_fit_name((wn_fit_kind)bad));
    assert_non_null(wn_generate_end_name((wn_generate_end)bad));
    assert_non_null(wn_prune_end_name((wn_prune_end)bad));
    assert_non_null(wn_verdict_name((wn_verdict)bad));
    assert_non_null(wn_cache_format_name((wn_cache_format)bad));
    assert_non_null(wn_task_metric_name((wn_task_metric)bad));
    assert_non_null(wn_policy_name(bad));
    assert_null(wn_policy_at(bad));
    float x[32] = {0}, y[32];
    assert_refused(good.ctx, wn_gguf_encode(good.ctx, (wn_gguf_type)bad, x, 32, y), WN_ERR_ARGUMENT,
                   "wn_gguf_encode: type");
    const wn_chat_message message = {.role = (wn_chat_role)bad, .text = "x"};
    int32_t *ids;
    size_t count;
    assert_refused(good.ctx,
                   wn_chat_encode(good.ctx, good.tok, wn_chat_template_at(0), &message, 1, true, &ids, &count),
                   WN_ERR_ARGUMENT, "role");
  }
}

static void test_sentences(void **state) {
  (void)state;
  wn_model *model;
  int32_t token;
  const float none[] = {-INFINITY, -INFINITY}, nan[] = {0, NAN};
  wn_sampling s;
  wn_sampling_init(&s);
  assert_refused(good.ctx, wn_model_load(good.ctx, NULL, NULL, &model), WN_ERR_ARGUMENT, "wn_model_load: path is NULL");
  assert_refused(good.ctx, wn_sample(good.ctx, none, 2, NULL, 0, &token), WN_ERR_ARGUMENT,
                 "wn_sample: sampling is NULL");
  assert_refused(good.ctx, wn_sample(good.ctx, none, 2, &s, 0, &token), WN_ERR_ARGUMENT, "all 2 logits are -inf");
  assert_refused(good.ctx, wn_sample(good.ctx, nan, 2, &s, 0, &token), WN_ERR_ARGUMENT, "logit 1 is nan");
  assert_null(wn_chat_template_recognise(NULL));
  wn_session *session;
  assert_ok(good.ctx, wn_session_create(good.ctx, good.model, WN_OPTIONS(wn_session_options, .capacity = 8), &session));
  wn_session_destroy(session);
  assert_refused(good.ctx, wn_session_feed(good.ctx, session, &token, 1, 0, NULL), WN_ERR_ARGUMENT,
                 "wn_session_feed: session was destroyed");
  wn_session_destroy(session); /* does nothing */
  assert_refused(good.ctx, wn_session_feed(good.ctx, (wn_session *)(void *)good.tok, &token, 1, 0, NULL),
                 WN_ERR_ARGUMENT, "wn_session_feed: session is no wn_session");
}

int main(void) {
  const int flags = MAP_SHARED | MAP_ANONYMOUS;
  found = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, flags, -1, 0);
  places = mmap(NULL, 10 * sizeof *places, PROT_READ | PROT_WRITE, flags, -1, 0);
  make_folder(folder);
  snprintf(path, sizeof path, "%s/none/none", folder);
  good_init();
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_enums), cmocka_unit_test(test_sentences),
                                     cmocka_unit_test(test_all)};
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  remove_folder(folder);
  return failed;
}
