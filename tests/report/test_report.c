/* Reports from C: the sections that the input calls for, choosing sections, notes, cancelling, refusals. */
#include <math.h>
#include "train/tiny.h"

#include "winnow/report.h"
#include "policies.h"

static char folder[256], run[300], model[300], page[300];
static wn_context *ctx;

/* expr must give this status, and the context's message must contain `part`. */
#define refused(expr, expected, part)                                                                                  \
  do {                                                                                                                 \
    const wn_status refused_ = (expr);                                                                                 \
    if (refused_ != (expected) || !strstr(wn_context_error(ctx), part))                                                \
      fail_msg("%s: found %s: %s", #expr, wn_status_name(refused_), wn_context_error(ctx));                            \
  } while (0)

static void put(const char *path, const char *text) {
  must(ctx, wn_file_write(ctx, path, text, strlen(text)));
}

static int prepare(void **state) {
  (void)state;
  ctx = tiny_context("ref", 1);
  tiny_folder(folder);
  snprintf(run, sizeof run, "%s/run", folder);
  snprintf(model, sizeof model, "%s/model", folder);
  snprintf(page, sizeof page, "%s/page.html", folder);
  must(ctx, wn_make_dirs(ctx, run));
  char path[400];
  snprintf(path, sizeof path, "%s/log.jsonl", run);
  put(path, "{\"step\":1,\"tokens\":8,\"loss\":3}\n{\"step\":2,\"tokens\":16777217,\"loss\":2,\"val_loss\":1}\n");
  wn_model_config c;
  wn_model *made;
  wn_tokenizer *tok;
  wn_model_config_init(&c);
  c.vocab_size = 256, c.context = 16, c.layers = 2, c.width = 16, c.heads = 2, c.kv_heads = 1, c.head_size = 8;
  c.ffn_width = 16, c.attention.selective.enabled = true;
  must(ctx, wn_model_create(ctx, &c, 1, &made));
  must(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  must(ctx, wn_model_save(ctx, made, tok, model));
  wn_tokenizer_destroy(tok);
  wn_model_destroy(made);
  return 0;
}
static int clear(void **state) {
  (void)state;
  tiny_remove(folder);
  wn_context_destroy(ctx);
  return 0;
}

static wn_report_options of(const char *const *inputs, int count) {
  wn_report_options o;
  wn_report_options_init(&o, sizeof o);
  o.inputs = inputs, o.input_count = count;
  return o;
}

static bool stands(const char *text) {
  char *html = tiny_read(folder, "page.html", NULL);
  const bool there = html && strstr(html, text);
  free(html);
  return there;
}

/* Budgets of key-value heads: the page shows their mean, not rounded to whole tokens of a layer. */
static void test_budgets_of_heads(void **state) {
  (void)state;
  char heads[300];
  wn_model_config c;
  wn_model *made;
  wn_tokenizer *tok;
  wn_budgets choices;
  snprintf(heads, sizeof heads, "%s/heads", folder);
  wn_model_config_init(&c);
  c.vocab_size = 256, c.context = 16, c.layers = 1, c.width = 16, c.heads = 2, c.kv_heads = 2, c.head_size = 8;
  c.ffn_width = 16;
  must(ctx, wn_model_create(ctx, &c, 1, &made));
  must(ctx, wn_tokenizer_load(ctx, "bytes", &tok));
  must(ctx, wn_model_save(ctx, made, tok, heads));
  wn_tokenizer_destroy(tok);
  wn_model_destroy(made);
  const char *const inputs[] = {heads};
  wn_report_options o = of(inputs, 1);
  budgets_init(&choices);
  choices.per_kv_head = true;
  wn_policy h2o;
  assert_int_equal(wn_policy_find(NULL, "h2o", &h2o), WN_OK);
  o.policy = h2o, o.choices = &choices;
  o.text = "the cat sat on", o.text_bytes = 14, o.budgets = "5:2", o.sections = "budgets";
  must(ctx, wn_report_save(ctx, &o, page, NULL));
  assert_true(stands("2 to 5 tokens by key-value head, 3.5 on average"));
}

static void test_sections(void **state) {
  (void)state;
  const char *const inputs[] = {run, model};
  wn_report_options o = of(inputs, 2);
  wn_report_result result;
  o.text = "the cat sat on", o.text_bytes = 14, o.budgets = "4";
  o.command = "made <here>";
  must(ctx, wn_report_save(ctx, &o, page, &result));
  assert_int_equal(result.texts, 1);
  size_t bytes;
  free(tiny_read(folder, "page.html", &bytes));
  assert_int_equal(result.bytes, bytes);
  static const char *const all[] = {"<h1>run and model</h1>",
                                    ">Training</h2>",
                                    ">Attention, selections and evictions</h2>",
                                    ">What budgets keep</h2>",
                                    ">Meaningful attention</h2>",
                                    ">What heads look at</h2>",
                                    "id=\"loss\"",
                                    "16777217",
                                    "id=\"survival-0\"",
                                    "made &lt;here&gt;"};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!stands(all[i])) fail_msg("%s is not there", all[i]);
  /* Without input a section has no heading. */
  assert_false(stands(">Quality against memory</h2>"));
  assert_false(stands(">Spans</h2>"));
  o.sections = "training,look";
  must(ctx, wn_report_save(ctx, &o, page, &result));
  assert_int_equal(result.texts, 0);
  assert_true(stands(">Training</h2>") && stands(">What heads look at</h2>"));
  assert_false(stands(">What budgets keep</h2>") || stands(">Attention, selections and evictions</h2>"));
  o.sections = "budgets"; /* shown even without a text to which they apply */
  must(ctx, wn_report_save(ctx, &o, page, NULL));
  assert_true(stands("id=\"policies-0\"") && !stands("id=\"loss\""));
  const char *title = NULL;
  int count = 0;
  for (; wn_report_section(count, &title); count++) assert_non_null(title);
  assert_true(count >= 7 && !strcmp(wn_report_section(0, NULL), "texts") && !wn_report_section(-1, NULL));
  o.sections = "training,curves";
  refused(wn_report_save(ctx, &o, page, NULL), WN_ERR_ARGUMENT, "no section \"curves\"; expected texts,");
  o.sections = "";
  refused(wn_report_save(ctx, &o, page, NULL), WN_ERR_ARGUMENT, "no section \"\"");
}

static void count_note(void *user, const char *line) {
  int *notes = user;
  assert_true(strstr(line, model) == line && !strchr(line, '\n'));
  ++*notes;
}

static void test_notes(void **state) {
  (void)state;
  const char *const inputs[] = {model};
  wn_report_options o = of(inputs, 1);
  int notes = 0;
  o.note = count_note, o.user = &notes;
  must(ctx, wn_report_save(ctx, &o, page, NULL)); /* no text and no data */
  assert_int_equal(notes, 1);
  assert_false(stands("<h2"));
}

static void test_refused(void **state) {
  (void)state;
  const char *const inputs[] = {run, folder};
  wn_report_options o = of(inputs, 2);
  remove(page);
  refused(wn_report_save(ctx, &o, page, NULL), WN_ERR_ARGUMENT, "expected a run");
  o.input_count = 0;
  refused(wn_report_save(ctx, &o, page, NULL), WN_ERR_ARGUMENT, "nothing to draw");
  o.input_count = 1, o.size = 0;
  refused(wn_report_save(ctx, &o, page, NULL), WN_ERR_ARGUMENT, "size");
  o = of(inputs, 1);
  o.tokens = 0;
  refused(wn_report_save(ctx, &o, page, NULL), WN_ERR_ARGUMENT, "tokens");
  o.tokens = 1;
  wn_context_cancel(ctx);
  refused(wn_report_save(ctx, &o, page, NULL), WN_ERR_CANCELLED, "cancelled");
  wn_context_resume(ctx);
  assert_int_not_equal(access(page, F_OK), 0);
  must(ctx, wn_report_save(ctx, &o, page, NULL));
}

static void in_file(const char *folder_of, const char *name, const char *const *texts, int count) {
  char *file = tiny_read(folder_of, name, NULL);
  for (int i = 0; i < count; i++)
    if (!file || !strstr(file, texts[i])) fail_msg("%s: %s is not in %s", name, texts[i], file ? file : "nothing");
  free(file);
}

/* Saved answers: a curve from the full cache on with its band, and needles by depth and length. */
static void test_answers(void **state) {
  (void)state;
  char paths[4][300], figures[300], name[40];
  static const char *const heads[] = {
      "",
      ",\"budgets\":{\"policy\":\"knorm\",\"when\":\"prompt\",\"method\":\"snapkv\",\"share\":0.5,"
      "\"allot\":\"ada\",\"per_kv_head\":true,\"tokens\":[9]}",
      ",\"budgets\":{\"policy\":\"knorm\",\"when\":\"prompt\",\"method\":\"snapkv\",\"share\":0.25,"
      "\"allot\":\"ada\",\"per_kv_head\":true,\"tokens\":[9]}",
      ",\"budgets\":{\"policy\":\"knorm\",\"when\":\"prompt\",\"method\":\"snapkv\",\"share\":0.5,"
      "\"allot\":\"ada\",\"per_kv_head\":true,\"tokens\":[9]}"};
  for (int i = 0; i < 4; i++) { /* the last one: as the second, of longer contexts */
    char text[2000];
    int n;
    snprintf(paths[i], sizeof paths[i], "%s/answers-%d.jsonl", folder, i);
    n = snprintf(text, sizeof text, "{\"answers\":4%s}\n", heads[i]);
    for (int k = 0; k < 4; k++) /* scores 1, 1, 0, 0 and so on; two depths, two lengths */
      n += snprintf(text + n, sizeof text - (size_t)n,
                    "{\"sample\":%d,\"score\":%d,\"context_tokens\":%d,\"context_kept\":%d,\"depth\":%s}\n", k,
                    k < 2 - (i == 2), (k % 2 ? 1024 : 512) << 2 * (i == 3),
                    ((k % 2 ? 1024 : 512) << 2 * (i == 3)) * (4 - 2 * (i > 0) - (i == 2)) / 4, k < 2 ? "0.05" : "1");
    put(paths[i], text);
  }
  const char *const inputs[] = {paths[0], paths[1], paths[2], paths[3]};
  wn_report_options o = of(inputs, 4);
  snprintf(figures, sizeof figures, "%s/figures", folder);
  o.figures = figures;
  must(ctx, wn_report_save(ctx, &o, page, NULL));
  assert_true(stands(">Written answers</h2>") && stands("id=\"answers\"") && stands("id=\"needles-2\""));
  assert_true(stands("ada-snapkv, 75% evicted") && stands("none, 0% evicted") && !stands("id=\"needles-3\""));
  /* Standard errors by hand: sqrt(variance / n), of 8 and 4 scores of which a half and a quarter are 100. */
  static const char *const rows[] = {"% of the context evicted,score,standard error\n", "ada-snapkv,0,50,28.867513",
                                     "ada-snapkv,50,50,18.898223", "ada-snapkv,75,25,25\n"};
  in_file(figures, "answers.csv", rows, 4);
  static const char *const drawn[] = {"<path class=\"band f0\" d=\"M", "<path class=\"line c0 s0\""};
  in_file(figures, "answers.svg", drawn, 2);
  static const char *const needles[] = {"tokens of the context,\"depth, %\",score\n", "needles,512,5,100\n",
                                        "needles,512,95,0\n", "needles,1024,5,100\n"};
  in_file(figures, "needles-0.csv", needles, 4);
  static const char *const longer[] = {"needles,512,5,100\n", "needles,2048,95,0\n", "needles,4096,5,100\n"};
  in_file(figures, "needles-1.csv", longer, 3);
  /* Two columns of ten rows fill 670 x 380; depth grows downwards. */
  static const char *const cells[] = {"fill-opacity=\"0.70\" x=\"70.0\" y=\"44.0\" width=\"335.0\" height=\"38.0\"",
                                      "fill-opacity=\"0.00\" x=\"405.0\" y=\"386.0\" width=\"335.0\" height=\"38.0\""};
  in_file(figures, "needles-0.svg", cells, 2);
  snprintf(name, sizeof name, "{\"answers\":1}\n{\"sample\":0}\n");
  put(paths[1], name);
  refused(wn_report_save(ctx, &o, page, NULL), WN_ERR_FORMAT, "answers-1.jsonl:2: field \"score\"");
  put(paths[1], "{\"answers\":1}\n");
  refused(wn_report_save(ctx, &o, page, NULL), WN_ERR_FORMAT, "no answer");
}

/* A run whose log has every tenth step and whose name is a number. */
static void test_runs(void **state) {
  (void)state;
  char dated[300], path[400], log[4000];
  const char *const inputs[] = {dated};
  wn_report_options o = of(inputs, 1);
  size_t n = 0;
  snprintf(dated, sizeof dated, "%s/20240101", folder);
  snprintf(path, sizeof path, "%s/log.jsonl", dated);
  must(ctx, wn_make_dirs(ctx, dated));
  for (int step = 10; step <= 200; step += 10)
    n += (size_t)snprintf(log + n, sizeof log - n, "{\"step\":%d,\"tokens\":%d,\"seconds\":1,\"loss\":%d}\n", step,
                          8 * step, step);
  put(path, log);
  must(ctx, wn_report_save(ctx, &o, page, NULL));
  assert_true(stands("[\"20240101\",200,1600,1,180,")); /* the mean of steps 160 to 200 */
}

/* A long line with a jump at every 20th step: smoothing gives its mean, not the middle of its extremes. */
static void test_long_run(void **state) {
  (void)state;
  enum { STEPS = 20000, LINE = 70 };
  char longest[300], path[400], *log = malloc((size_t)STEPS * LINE);
  const char *const inputs[] = {longest};
  wn_report_options o = of(inputs, 1);
  size_t n = 0;
  assert_non_null(log);
  snprintf(longest, sizeof longest, "%s/long", folder);
  snprintf(path, sizeof path, "%s/log.jsonl", longest);
  must(ctx, wn_make_dirs(ctx, longest));
  for (int step = 1; step <= STEPS; step++)
    n += (size_t)snprintf(log + n, LINE, "{\"step\":%d,\"tokens\":%d,\"seconds\":1,\"loss\":%d}\n", step, 2 * step,
                          step % 20 ? 1 : 10);
  put(path, log);
  free(log);
  must(ctx, wn_report_save(ctx, &o, page, NULL));
  assert_true(stands("\"all\":20000,\"mean\":{\"x\":[[21,61,101,") && stands("],\"y\":[1.45,1.45,1.45,"));
}

/* Names with commas and quotes in a comparison's CSV file; errors that are not known are empty. */
static void test_comparison_csv(void **state) {
  (void)state;
  wn_prune_score score = {.accuracy = 0.5, .error = 0.25};
  int64_t tokens[2] = {4, 4}, layers = 2;
  const wn_estimate known = {.value = 2, .error = 0.5, .low = 1, .high = 3}, unknown = {0, NAN, NAN, NAN, 0};
  wn_prune_row row = {.policy = -1,
                      .tokens = tokens,
                      .per_layer = 4,
                      .total = 8,
                      .saving = 1,
                      .scores = &score,
                      .loss_rows = known,
                      .change = unknown,
                      .difference = known,
                      .verdict = WN_VERDICT_HIGHER};
  const char *name = "run, \"b\"";
  const wn_prune_comparison c = {
      .names = &name, .layers = &layers, .tasks = {"piqa,5"}, .task_count = 1, .results = &row, .count = 1, .rows = 7};
  char path[300];
  snprintf(path, sizeof path, "%s/c.csv", folder);
  must(ctx, wn_prune_comparison_save_csv(ctx, &c, path));
  char *text = tiny_read(folder, "c.csv", NULL);
  assert_non_null(
      strstr(text, ",perplexity,\"piqa,5\",\"piqa,5_stderr\",rows,loss_stderr,loss_low,loss_high,change,change_stderr,"
                   "change_low,change_high,difference,difference_stderr,difference_low,difference_high,verdict\n"
                   "\"run, \"\"b\"\"\",none,0,4,4 4,8,1,0,1,0.5,0.25,7,0.5,1,3,0,,,,2,0.5,1,3,higher\n"));
  free(text);
}

static int count_of(const char *text, const char *what) {
  int n = 0;
  for (const char *at = text; (at = strstr(at, what)); at++) n++;
  return n;
}

/* The SVG of one line, read back. */
static char *svg_of(const double *y, int64_t count) {
  double x[40];
  for (int i = 0; i < 40; i++) x[i] = i;
  const wn_figure_series series = {.name = "a", .count = count, .x = {x}, .y = y};
  const wn_figure figure = {.id = "f",
                            .title = "A <figure>",
                            .about = "It is one.",
                            .command = "test",
                            .axes = 1,
                            .x = {{"step", false}},
                            .y = {"loss", false},
                            .series = &series,
                            .series_count = 1};
  char path[300];
  snprintf(path, sizeof path, "%s/f.svg", folder);
  must(ctx, wn_figure_save_svg(ctx, &figure, path));
  char *text = tiny_read(folder, "f.svg", NULL);
  assert_true(strstr(text, "A &lt;figure&gt;") && strstr(text, "</svg>\n"));
  assert_true(!strstr(text, "nan") && !strstr(text, "inf"));
  return text;
}

static void test_svg(void **state) {
  (void)state;
  double y[40];
  for (int i = 0; i < 40; i++) y[i] = i % 7;
  char *text = svg_of(y, 40); /* many points: a line without markers; the legend has its own path */
  assert_int_equal(count_of(text, "<circle"), 0);
  assert_int_equal(count_of(text, "<path class=\"line"), 2);
  assert_int_equal(count_of(text, "L"), 39);
  free(text);
  y[5] = y[7] = NAN; /* a point between two gaps gets a marker */
  text = svg_of(y, 40);
  assert_int_equal(count_of(text, "<circle"), 1);
  assert_int_equal(count_of(text, "L"), 40 - 2 - 3);
  free(text);
  text = svg_of(y, 20); /* few points */
  assert_int_equal(count_of(text, "<circle"), 18);
  free(text);
  y[3] = INFINITY; /* leaves the plot and returns */
  text = svg_of(y, 40);
  assert_int_equal(count_of(text, " -10000.0"), 1);
  assert_int_equal(count_of(text, "L"), 40 - 2 - 3);
  free(text);
}

/* A name wider than the picture is shortened in its middle, between characters. */
static void test_svg_legend(void **state) {
  (void)state;
  char name[301] = "", path[300];
  for (int i = 0; i < 100; i++) strcat(name, i < 50 ? "\xC3\xA4" : "z");
  const double x[] = {1, 2};
  const wn_figure_series series = {.name = name, .count = 2, .x = {x}, .y = x};
  const wn_figure figure = {.id = "l",
                            .title = "l",
                            .about = "l",
                            .command = "l",
                            .axes = 1,
                            .x = {{"x", false}},
                            .y = {"y", false},
                            .series = &series,
                            .series_count = 1};
  snprintf(path, sizeof path, "%s/l.svg", folder);
  must(ctx, wn_figure_save_svg(ctx, &figure, path));
  char *text = tiny_read(folder, "l.svg", NULL);
  assert_non_null(strstr(text, "\xC3\xA4\xE2\x80\xA6zz"));
  assert_int_equal(count_of(text, "\xC3\xA4"), 44);
  assert_null(strstr(text, "\xEF\xBF\xBD"));
  const char *end = strstr(text, "\xE2\x80\xA6");
  assert_int_equal(strspn(end + 3, "z"), 44);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_budgets_of_heads), cmocka_unit_test(test_sections),       cmocka_unit_test(test_notes),
      cmocka_unit_test(test_refused),          cmocka_unit_test(test_answers),        cmocka_unit_test(test_runs),
      cmocka_unit_test(test_long_run),         cmocka_unit_test(test_comparison_csv), cmocka_unit_test(test_svg),
      cmocka_unit_test(test_svg_legend)};
  return cmocka_run_group_tests(tests, prepare, clear);
}
