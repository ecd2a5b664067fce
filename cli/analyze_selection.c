/* winnow analyze selection: mean F over many sequences, and how alike two runs select; winnow analyze task: what is
 * selected away on a synthetic task. */
#include "analyze.h"

#include <winnow/selection.h>

/* ---- selection ---- */

struct selection {
  struct analysis analysis;
  const char *against;
  uint64_t sequences;
  int64_t cell;
  wn_selection_mean *mean, *other;
  wn_selection_likeness *likeness;
};

/* How many cells of row r count: those on and below the diagonal, or all of an encoder's. */
static int64_t selection_columns(const wn_selection_mean *m, int64_t r) {
  return m->encoder ? m->size : r + 1;
}

/* Mean of a layer over all pairs, weighting cells by their pairs. */
static double selection_layer_mean(const wn_selection_mean *m, const float *of, int64_t l) {
  double sum = 0, n = 0;
  for (int64_t r = 0; r < m->size; r++)
    for (int64_t c = 0; c < selection_columns(m, r); c++) {
      const double pairs = m->pairs[r * m->size + c];
      sum += pairs * (double)of[(l * m->size + r) * m->size + c], n += pairs;
    }
  return n > 0 ? sum / n : 0;
}

static double selection_last_mean(const wn_selection_mean *m, int64_t l) {
  double sum = 0;
  for (int64_t t = 0; t < m->T; t++) sum += (double)m->last[l * m->T + t];
  return sum / (double)m->T;
}

static json_t *selection_json(const struct selection *s) {
  const wn_selection_mean *m = s->mean;
  const wn_selection_likeness *k = s->likeness;
  json_t *layers = json_array();
  for (int64_t l = 0; l < m->layers; l++) {
    json_t *F = json_array(), *masked = json_array();
    for (int64_t r = 0; r < m->size; r++) {
      json_t *row = json_array(), *part = json_array();
      for (int64_t c = 0; c < selection_columns(m, r); c++) {
        json_array_append_new(row, json_real((double)m->F[(l * m->size + r) * m->size + c]));
        json_array_append_new(part, json_real((double)m->masked[(l * m->size + r) * m->size + c]));
      }
      json_array_append_new(F, row);
      json_array_append_new(masked, part);
    }
    json_array_append_new(layers, json_pack("{s:f, s:f, s:o, s:o, s:o}", "mean_F", selection_layer_mean(m, m->F, l),
                                            "masked", selection_layer_mean(m, m->masked, l), "masked_last_row",
                                            m->whole > 0 ? json_real(selection_last_mean(m, l)) : json_null(), "F", F,
                                            "masked_cells", masked));
  }
  json_t *json = json_pack("{s:o, s:I, s:I, s:I, s:f, s:o}", "model", cli_text(s->analysis.model_dir), "sequences",
                           (json_int_t)m->sequences, "tokens", (json_int_t)m->T, "cell", (json_int_t)m->cell, "loss",
                           m->loss, "layers", layers);
  if (!k) return json;
  json_t *correlation = json_array();
  for (int64_t i = 0; i < k->layers[0]; i++) {
    json_t *row = json_array();
    for (int64_t j = 0; j < k->layers[1]; j++)
      json_array_append_new(row, json_real(k->correlation[i * k->layers[1] + j]));
    json_array_append_new(correlation, row);
  }
  json_object_set_new(json, "against",
                      json_pack("{s:o, s:f, s:f, s:f, s:f, s:f, s:o}", "model", cli_text(s->against), "same_layer",
                                k->same, "other_layers", k->others, "most_alike", k->best, "same_layer_difference",
                                k->same_difference, "other_layers_difference", k->other_difference, "correlation",
                                correlation));
  return json;
}

static void selection_csv(FILE *f, const void *what) {
  const wn_selection_mean *m = ((const struct selection *)what)->mean;
  fprintf(f, "layer,row,column,F,masked%s\n", m->weights ? ",weight" : "");
  for (int64_t l = 0; l < m->layers; l++)
    for (int64_t r = 0; r < m->size; r++)
      for (int64_t c = 0; c < selection_columns(m, r); c++) {
        const int64_t k = (l * m->size + r) * m->size + c;
        fprintf(f, "%" PRId64 ",%" PRId64 ",%" PRId64 ",%.7g,%.7g", l, r * m->cell, c * m->cell, (double)m->F[k],
                (double)m->masked[k]);
        if (m->weights) fprintf(f, ",%.7g", (double)m->weights[k]);
        fputc('\n', f);
      }
}

static void selection_print(const struct analysis *a, const void *what) {
  const struct selection *s = what;
  const wn_selection_mean *m = s->mean;
  const wn_selection_likeness *k = s->likeness;
  char loss[40] = "";
  if (!m->encoder) snprintf(loss, sizeof loss, ", loss %.4f", m->loss);
  printf("%s%s: means over %" PRIu64 " sequences of %" PRId64 " tokens%s\n\nlayer    mean F   1-e^-F   in the last "
         "row\n",
         a->model_dir, m->encoder ? ", encoder" : "", m->sequences, m->T, loss);
  for (int64_t l = 0; l < m->layers; l++) {
    printf("%5" PRId64 "%10.4f%9.4f", l, selection_layer_mean(m, m->F, l), selection_layer_mean(m, m->masked, l));
    if (m->whole > 0) printf("%18.4f\n", selection_last_mean(m, l));
    /* every sequence ends in padding */
    else
      printf("%18s\n", "-");
  }
  if (!k) return;
  printf("\nagainst %s: correlation of the cells' 1-e^-F, its layers across\nlayer", s->against);
  for (int64_t j = 0; j < k->layers[1]; j++) printf("%8" PRId64, j);
  for (int64_t i = 0; i < k->layers[0]; i++) {
    printf("\n%5" PRId64, i);
    for (int64_t j = 0; j < k->layers[1]; j++) printf("%8.3f", k->correlation[i * k->layers[1] + j]);
  }
  printf("\nsame layer %.3f, other layers %.3f, the layer most alike %.3f; mean difference %.4f and %.4f\n", k->same,
         k->others, k->best, k->same_difference, k->other_difference);
}

static const struct cli_option selection_options[] = {
    CLI_OPTION(struct selection, sequences, "sequences", "N", "sequences of --data to take the mean over", .min = 1,
               .max = 1e9),
    CLI_OPTION(struct selection, cell, "cell", "N", "tokens on a side of a cell; 0: as few as give 256 cells or fewer",
               .min = 0, .max = 1 << 20),
    CLI_OPTION(struct selection, against, "against", "DIR", "another run: how alike the two select"),
    CLI_OPTION(struct selection, analysis.encoder, "encoder", NULL,
               "of the model's selective encoder, on inputs made as in its training"),
    ANALYSIS_MODEL_OPTIONS(struct selection, analysis),
    ANALYSIS_DATA_OPTIONS(struct selection, analysis),
    ANALYSIS_RESULT_OPTIONS(struct selection, analysis)};

static const struct cli_spec selection_spec = {
    .command = "winnow analyze selection",
    .summary =
        "The mean of F, and of 1 - exp(-F), over many sequences of a token file, layer by layer and cell by cell\n"
        "(--csv, --json); with --against how alike another run selects on the same sequences.",
    CLI_TABLE(selection_options),
    CLI_OPTIONAL("[DIR]"),
    .epilog =
        "After Leviathan, Kalman, Matias, arXiv 2410.02703, appendix A.8. --long-only takes documents that fill the\n"
        "context, as the paper does. Any two layers mask old tokens more than new ones: the correlation of other\n"
        "layers is what that of the same layer is to be compared with."};

/* Opens the other run before anything is measured, and checks that it can read the same tokens. */
static int selection_open_other(const struct selection *s, int64_t T, wn_model **out) {
  const struct analysis *a = &s->analysis;
  const wn_status status = cli_model_load(a->ctx, s->against, a->check, NULL, NULL, out);
  if (status != WN_OK) return cli_fail(a->ctx, status);
  const wn_model_config *c = wn_model_config_get(a->model), *other = wn_model_config_get(*out);
  if (other->vocab_size != c->vocab_size)
    return cli_error("--against %s: a vocabulary of %" PRId64 " tokens; that of %s has %" PRId64, s->against,
                     other->vocab_size, a->model_dir, c->vocab_size);
  if (a->encoder ? !other->encoder.selective : !other->attention.selective.enabled)
    return cli_error("--against %s: the model has no selective %s", s->against, a->encoder ? "encoder" : "attention");
  const int64_t context = a->encoder ? other->encoder.context : other->context;
  if (context < T)
    return cli_error("--against %s: a context of %" PRId64 " tokens; the sequences have %" PRId64 ", see --context",
                     s->against, context, T);
  return 0;
}

static int selection_measure(struct selection *s) {
  struct analysis *a = &s->analysis;
  wn_model *other = NULL;
  const wn_model_config *c = wn_model_config_get(a->model);
  const int64_t T = a->eval.context ? a->eval.context : a->encoder ? c->encoder.context : c->context;
  const wn_selection_mean_options options = {.size = sizeof options,
                                             .T = T,
                                             .sequences = s->sequences,
                                             .cell = s->cell,
                                             .progress = cli_progress_on,
                                             .user = &a->bar,
                                             .encoder = a->encoder};
  if (!a->encoder && !c->attention.selective.enabled)
    return cli_error("%s: the model has no selective attention%s", a->model_dir,
                     c->encoder.selective ? "; its encoder has: --encoder" : "");
  const int code = s->against ? selection_open_other(s, T, &other) : 0;
  if (code) {
    wn_model_destroy(other);
    return code;
  }
  analysis_begin(a, "selection", "sequences");
  wn_status status = wn_analyze_selection_mean(a->ctx, a->model, a->source, &options, &s->mean);
  if (status == WN_OK && other) status = wn_analyze_selection_mean(a->ctx, other, a->source, &options, &s->other);
  if (status == WN_OK && other) status = wn_selection_compare(a->ctx, s->mean, s->other, &s->likeness);
  status = analysis_ended(a, status);
  wn_model_destroy(other);
  return analysis_end(a, status);
}

int analyze_selection(int argc, char **argv) {
  struct selection s = {.analysis = ANALYSIS_DEFAULTS, .sequences = 1000};
  struct analysis *a = &s.analysis;
  int code = analysis_open(a, &selection_spec, argc, argv, &s);
  if (!code && !a->data) code = cli_usage_error(a->command, "a token file is needed: --data");
  if (!code) code = analysis_special(a);
  if (!code) code = selection_measure(&s);
  if (!code) code = analysis_deliver(a, selection_json(&s), selection_csv, selection_print, &s);
  wn_selection_mean_destroy(s.mean);
  wn_selection_mean_destroy(s.other);
  wn_selection_likeness_destroy(s.likeness);
  analysis_close(a);
  return code;
}

/* ---- task ---- */

struct task {
  struct analysis analysis;
  const char *config;
  struct cli_list sets;
  uint64_t sequences, seed;
  const wn_task_selection *r;
};

static const struct cli_option task_options[] = {
    CLI_OPTION(struct task, config, "config", "FILE", "a recipe whose task to use; else the checkpoint's"),
    CLI_OPTION(struct task, sets, "set", "KEY=VALUE", "changes one key of that recipe, such as data.eval_values=2"),
    CLI_OPTION(struct task, sequences, "sequences", "N", "sequences of the task", .min = 1, .max = 1e9),
    CLI_OPTION(struct task, seed, "seed", "N", "seed of the task's random cases"),
    ANALYSIS_MODEL_OPTIONS(struct task, analysis),
    ANALYSIS_RESULT_OPTIONS(struct task, analysis)};

static const struct cli_spec task_spec = {
    .command = "winnow analyze task",
    .summary =
        "Variable Assignment, Copy and Parity, of a run on one of them: the share of tokens that are no longer needed\n"
        "and selected away, 1 - exp(-F) > 0.5, and the share of those still needed, by layer and in any.",
    CLI_TABLE(task_options),
    CLI_OPTIONAL("[DIR]"),
    .epilog =
        "spent: values (and names) of assignments that a later one replaces, at the query; symbols copied already, as\n"
        "the next is copied; bits before the last two. After Leviathan, Kalman, Matias, arXiv 2410.02703, section 2."};

static const char *const task_names[] = {"spent", "needed", "spent_names", "needed_names"};

static const wn_task_share *task_share(const wn_task_layer *layer, int k) {
  const wn_task_share *const shares[] = {&layer->spent, &layer->needed, &layer->spent_names, &layer->needed_names};
  return shares[k];
}

static json_t *task_layer_json(const wn_task_layer *layer) {
  json_t *json = json_object();
  for (int k = 0; k < 4; k++) {
    const wn_task_share *share = task_share(layer, k);
    if (share->count > 0)
      json_object_set_new(json, task_names[k],
                          json_pack("{s:I, s:f, s:f}", "tokens", (json_int_t)share->count, "selected", share->selected,
                                    "masked", share->masked));
  }
  return json;
}

static json_t *task_json(const struct task *t) {
  json_t *layers = json_array();
  for (int64_t l = 0; l < t->r->layers; l++) json_array_append_new(layers, task_layer_json(&t->r->layer[l]));
  return json_pack("{s:o, s:I, s:o, s:o}", "model", cli_text(t->analysis.model_dir), "sequences",
                   (json_int_t)t->r->sequences, "layers", layers, "any", task_layer_json(&t->r->any));
}

static void task_put_layer(FILE *f, const char *name, const wn_task_layer *layer) {
  for (int k = 0; k < 4; k++) {
    const wn_task_share *share = task_share(layer, k);
    if (share->count > 0)
      fprintf(f, "%s,%s,%" PRIu64 ",%.7g,%.7g\n", name, task_names[k], share->count, share->selected, share->masked);
  }
}

static void task_csv(FILE *f, const void *what) {
  const struct task *t = what;
  char name[24];
  fprintf(f, "layer,kind,tokens,selected,masked\n");
  for (int64_t l = 0; l < t->r->layers; l++) {
    snprintf(name, sizeof name, "%" PRId64, l);
    task_put_layer(f, name, &t->r->layer[l]);
  }
  task_put_layer(f, "any", &t->r->any);
}

static void task_print_layer(const char *name, const wn_task_layer *layer) {
  printf("%5s", name);
  for (int k = 0; k < 4; k++)
    if (task_share(layer, k)->count > 0) printf("%13.2f%%", 100 * task_share(layer, k)->selected);
  putchar('\n');
}

static void task_print(const struct analysis *a, const void *what) {
  const struct task *t = what;
  static const char *const heads[] = {"spent", "needed", "spent names", "needed names"};
  char name[24];
  printf("%s: selected away on %" PRIu64 " sequences, 1 - exp(-F) > 0.5\n\nlayer", a->model_dir, t->r->sequences);
  for (int k = 0; k < 4; k++)
    if (task_share(&t->r->any, k)->count > 0) printf("%14s", heads[k]);
  putchar('\n');
  for (int64_t l = 0; l < t->r->layers; l++) {
    snprintf(name, sizeof name, "%" PRId64, l);
    task_print_layer(name, &t->r->layer[l]);
  }
  task_print_layer("any", &t->r->any);
}

int analyze_task(int argc, char **argv) {
  struct task t = {.analysis = ANALYSIS_DEFAULTS, .sequences = 100};
  struct analysis *a = &t.analysis;
  char kept[CLI_PATH_BYTES];
  wn_recipe recipe;
  wn_task_selection *r = NULL;
  int code = analysis_open(a, &task_spec, argc, argv, &t);
  const char *path = code ? NULL : cli_recipe_of(t.config, a->model_dir, kept);
  if (!code && !path) code = cli_usage_error(a->command, "%s has no recipe.json: give --config", a->model_dir);
  if (!code) code = cli_recipe_load(a->ctx, path, &t.sets, &recipe);
  if (!code) {
    analysis_begin(a, "task", "sequences");
    code = analysis_end(
        a, analysis_ended(a, wn_analyze_task_selection(a->ctx, a->model, &recipe.data, t.sequences, t.seed, &r)));
  }
  t.r = r;
  if (!code) code = analysis_deliver(a, task_json(&t), task_csv, task_print, &t);
  wn_task_selection_destroy(r);
  cli_list_clear(&t.sets);
  analysis_close(a);
  return code;
}
