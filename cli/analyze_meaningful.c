/* winnow analyze meaningful: tokens needed for shares of the attention's weight, by context length, layer and head. */
#include "analyze.h"

#include <math.h>
#include <stdlib.h>
#include <winnow/report.h>
#include "attention.h"

/* What is printed and written. */
struct result {
  const wn_meaning_report *r;
  int tau;          /* index of the share for which layers and curves are shown */
  int64_t fit_from; /* rows with less context are not fitted */
  wn_fit *fits;     /* [taus][WN_FIT_COUNT] */
  bool fitted;
  int control_count;
};

/* Fits all shares. Points are in order of sequences, not of lengths. */
static wn_status meaningful_fit_all(wn_context *ctx, struct result *s) {
  const wn_meaning_report *r = s->r;
  double *x = malloc((size_t)(r->points + 1) * sizeof *x), *y = malloc((size_t)(r->points + 1) * sizeof *y);
  wn_status status = x && y ? WN_OK : WN_ERR_MEMORY;
  for (int t = 0; status == WN_OK && t < r->tau_count; t++) {
    int64_t n = 0;
    for (int64_t p = 0; p < r->points; p++)
      if (r->x[p] >= (double)s->fit_from) x[n] = r->x[p], y[n++] = r->y[t * r->points + p];
    for (int k = 0; status == WN_OK && k < WN_FIT_COUNT; k++)
      status = wn_fit_curve(ctx, (wn_fit_kind)k, x, y, n, &s->fits[t * WN_FIT_COUNT + k]);
  }
  free(x), free(y);
  s->fitted = status == WN_OK;
  return status;
}

static int meaningful_best_of(const struct result *s, int t) {
  int best = 0;
  for (int k = 1; k < WN_FIT_COUNT; k++)
    if (s->fits[t * WN_FIT_COUNT + k].aic < s->fits[t * WN_FIT_COUNT + best].aic) best = k;
  return best;
}

static json_t *meaningful_cell_json(const wn_meaning_cell *c) {
  return json_pack("{s:f, s:f, s:f, s:f}", "mean", c->mean, "p10", c->quantile[0], "p50", c->quantile[1], "p90",
                   c->quantile[2]);
}

static json_t *meaningful_share_json(const struct result *s, int length, int t) {
  const wn_meaning_report *r = s->r;
  json_t *layers = json_array();
  for (int64_t l = 0; l < r->layers; l++) {
    const int64_t at = ((int64_t)length * r->tau_count + t) * r->layers + l;
    json_t *layer = meaningful_cell_json(&r->layer[at]), *heads = json_array();
    for (int64_t h = 0; h < r->heads; h++)
      json_array_append_new(heads, meaningful_cell_json(&r->head[at * r->heads + h]));
    json_object_set_new(layer, "heads", heads);
    json_array_append_new(layers, layer);
  }
  json_t *one = meaningful_cell_json(&r->all[length * r->tau_count + t]);
  json_object_set_new(one, "tau", json_real(r->taus[t]));
  json_object_set_new(one, "layers", layers);
  return one;
}

static json_t *meaningful_result_json(const struct analysis *a, const struct result *s) {
  const wn_meaning_report *r = s->r;
  json_t *lengths = json_array(), *fits = json_array();
  for (int i = 0; i < r->length_count; i++) {
    if (r->rows[i] == 0) continue;
    json_t *shares = json_array();
    for (int t = 0; t < r->tau_count; t++) json_array_append_new(shares, meaningful_share_json(s, i, t));
    json_array_append_new(lengths, json_pack("{s:I, s:I, s:f, s:f, s:o}", "length", (json_int_t)r->length[i], "rows",
                                             (json_int_t)r->rows[i], "context", r->context[i], "content", r->content[i],
                                             "shares", shares));
  }
  for (int t = 0; s->fitted && t < r->tau_count; t++)
    for (int k = 0; k < WN_FIT_COUNT; k++) {
      const wn_fit *f = &s->fits[t * WN_FIT_COUNT + k];
      json_array_append_new(fits, json_pack("{s:f, s:s, s:f, s:f, s:f, s:f, s:o, s:f, s:I}", "tau", r->taus[t], "curve",
                                            wn_fit_name((wn_fit_kind)k), "intercept", f->intercept, "slope", f->slope,
                                            "r2", f->r2, "adjusted_r2", f->adjusted_r2, "aic",
                                            isfinite(f->aic) ? json_real(f->aic) : json_null(), "mse", f->mse, "rows",
                                            (json_int_t)f->n));
    }
  return json_pack("{s:o, s:I, s:I, s:I, s:f, s:o, s:f, s:f, s:i, s:I, s:o, s:o}", "model", cli_text(a->model_dir),
                   "layers", (json_int_t)r->layers, "heads", (json_int_t)r->heads, "tokens", (json_int_t)r->eval.tokens,
                   "loss", r->eval.loss, "perplexity", cli_number(r->eval.perplexity), "accuracy", r->eval.accuracy,
                   "seconds", r->eval.seconds, "control_tokens", s->control_count, "fit_from", (json_int_t)s->fit_from,
                   "lengths", lengths, "fits", fits);
}

static void meaningful_csv_line(FILE *f, const wn_meaning_report *r, int i, int t, const char *layer, const char *head,
                                const wn_meaning_cell *c) {
  fprintf(f, "%" PRId64 ",%" PRIu64 ",%.6g,%.6g,%.6g,%s,%s,%.6g,%.6g,%.6g,%.6g\n", r->length[i], r->rows[i],
          r->context[i], r->content[i], r->taus[t], layer, head, c->mean, c->quantile[0], c->quantile[1],
          c->quantile[2]);
}

static void meaningful_result_csv(FILE *f, const void *what) {
  const wn_meaning_report *r = ((const struct result *)what)->r;
  char layer[24], head[24];
  fprintf(f, "length,rows,context,content,tau,layer,head,mean,p10,p50,p90\n");
  for (int i = 0; i < r->length_count; i++)
    for (int t = 0; r->rows[i] > 0 && t < r->tau_count; t++) {
      meaningful_csv_line(f, r, i, t, "all", "all", &r->all[i * r->tau_count + t]);
      for (int64_t l = 0; l < r->layers; l++) {
        const int64_t at = ((int64_t)i * r->tau_count + t) * r->layers + l;
        snprintf(layer, sizeof layer, "%" PRId64, l);
        meaningful_csv_line(f, r, i, t, layer, "all", &r->layer[at]);
        for (int64_t h = 0; h < r->heads; h++) {
          snprintf(head, sizeof head, "%" PRId64, h);
          meaningful_csv_line(f, r, i, t, layer, head, &r->head[at * r->heads + h]);
        }
      }
    }
}

static void meaningful_result_print(const struct analysis *a, const void *what) {
  const struct result *s = what;
  const wn_meaning_report *r = s->r;
  printf("%s: %" PRIu64 " tokens, perplexity %.2f, %" PRId64 " layers of %" PRId64 " heads, %d control tokens\n\n",
         a->model_dir, r->eval.tokens, r->eval.perplexity, r->layers, r->heads, s->control_count);
  printf("content tokens needed for a share tau of the content's weight, mean over layers and heads\n"
         " context    rows  content");
  for (int t = 0; t < r->tau_count; t++) printf("%8.4g", r->taus[t]);
  putchar('\n');
  for (int i = 0; i < r->length_count; i++) {
    if (r->rows[i] == 0) continue;
    printf("%8" PRId64 "%8" PRIu64 "%9.1f", r->length[i], r->rows[i], r->content[i]);
    for (int t = 0; t < r->tau_count; t++) printf("%8.1f", r->all[i * r->tau_count + t].mean);
    putchar('\n');
  }
  printf("\nby layer, tau %g (half of the rows and heads need at most: in brackets)\n   layer", r->taus[s->tau]);
  for (int i = 0; i < r->length_count; i++)
    if (r->rows[i] > 0 && r->length[i] >= 16) printf("%9" PRId64 "      ", r->length[i]);
  putchar('\n');
  for (int64_t l = 0; l < r->layers; l++) {
    printf("%8" PRId64, l);
    for (int i = 0; i < r->length_count; i++) {
      const wn_meaning_cell *c = &r->layer[((int64_t)i * r->tau_count + s->tau) * r->layers + l];
      if (r->rows[i] > 0 && r->length[i] >= 16) printf("%8.1f (%4.0f)", c->mean, c->quantile[1]);
    }
    putchar('\n');
  }
  if (!s->fitted) return;
  printf("\nfits of tokens needed y, mean over layers and heads, against the row's context length x; %" PRId64 " rows\n"
         "     tau  curve        a             b             adjusted R2            AIC           MSE\n",
         s->fits[0].n);
  for (int t = 0; t < r->tau_count; t++)
    for (int k = 0; k < WN_FIT_COUNT; k++) {
      const wn_fit *f = &s->fits[t * WN_FIT_COUNT + k];
      printf("%8.4g  %-12s%-14.6g%-14.6g%11.4f%15.2f%14.4f%s\n", r->taus[t], wn_fit_name((wn_fit_kind)k), f->intercept,
             f->slope, f->adjusted_r2, f->aic, f->mse, k == meaningful_best_of(s, t) ? "  best" : "");
    }
  printf("square root: y = a + b sqrt(x); logarithmic: y = a + b ln(x + 1); linear: y = a + b x\n");
}

struct meaningful {
  struct analysis analysis;
  const char *taus, *control, *svg, *svg_fits;
  double tau;
  int64_t fit_from;
};

static const struct cli_option meaningful_options[] = {
    CLI_OPTION(struct meaningful, taus, "taus", "A:B:STEP",
               "shares of the content's weight, or a list such as 0.5,0.9"),
    CLI_OPTION(struct meaningful, tau, "tau", "X",
               "the share for the tables by layer and the fits; the nearest of --taus", .min = 1e-6, .max = 1),
    CLI_CONTROL_OPTION(struct meaningful, control),
    CLI_OPTION(struct meaningful, fit_from, "fit-from", "N", "the least context length of the rows to fit", .min = 1,
               .max = 1 << 24),
    CLI_OPTION(struct meaningful, svg, "svg", "FILE", "a plot: tokens needed against context length"),
    CLI_OPTION(struct meaningful, svg_fits, "svg-fits", "FILE", "a plot: the three curves at --tau"),
    ANALYSIS_OPTIONS(struct meaningful, analysis)};

static const struct cli_spec meaningful_spec = {
    .command = "winnow analyze meaningful",
    .summary =
        "Meaningful attention: the number of content tokens that a row, head and layer needs until their weights\n"
        "reach a share tau of the content's weight; by context length, with fitted curves.",
    CLI_TABLE(meaningful_options),
    CLI_OPTIONAL("[DIR]"),
    .epilog =
        "After Fernandez, Unsal, \"How Much Attention is 'All You Need'?\". Control tokens are excluded, from the\n"
        "count and from the weight. One pass gives all shares; no T x T matrix is formed."};

/* Chooses the share nearest to --tau, and fits all shares. */
static int meaningful_choose_share(const struct meaningful *m, const wn_meaning_report *report, struct result *out) {
  out->r = report;
  for (int t = 1; t < report->tau_count; t++)
    if (fabs(report->taus[t] - m->tau) < fabs(report->taus[out->tau] - m->tau)) out->tau = t;
  out->fits = calloc((size_t)report->tau_count * WN_FIT_COUNT, sizeof *out->fits);
  if (!out->fits) return cli_error("out of memory");
  if (meaningful_fit_all(m->analysis.ctx, out) != WN_OK)
    cli_note(&m->analysis.common, "no fits: %s", wn_context_error(m->analysis.ctx));
  return 0;
}

static int meaningful_save_plots(const struct meaningful *m, const struct result *s) {
  const struct analysis *a = &m->analysis;
  int code = 0;
  if (m->svg) code = analysis_end(a, wn_meaning_save_svg(a->ctx, s->r, "Tokens needed", m->svg));
  if (code || !m->svg_fits) return code;
  if (!s->fitted) return cli_error("--svg-fits: there are no fits");
  return analysis_end(a, wn_meaning_fits_save_svg(a->ctx, s->r, s->tau, s->fits + s->tau * WN_FIT_COUNT,
                                                  "Tokens needed, and curves", m->svg_fits));
}

int analyze_meaningful(int argc, char **argv) {
  struct meaningful m = {
      .analysis = ANALYSIS_DEFAULTS, .taus = "0.5:1:0.05", .control = "special", .tau = 0.75, .fit_from = 1};
  struct analysis *a = &m.analysis;
  struct result s = {0};
  wn_meaning_report *report = NULL;
  int32_t *ids = NULL;
  double taus[64];
  wn_meaning_options choice = {.size = sizeof choice, .taus = taus, .tau_count = 64};
  int code = analysis_open(a, &meaningful_spec, argc, argv, &m);
  s.fit_from = m.fit_from;
  if (!code) code = analysis_plot(a, "svg", m.svg);
  if (!code) code = analysis_plot(a, "svg-fits", m.svg_fits);
  if (!code) code = analysis_apart(a, "svg", m.svg, "svg-fits", m.svg_fits);
  if (!code) code = analysis_taus(a, m.taus, taus, &choice.tau_count);
  if (!code) code = analysis_control(a, m.control, &ids, &s.control_count);
  if (!code) code = analysis_needs_text(a);
  if (!code) {
    choice.control = ids, choice.control_count = s.control_count;
    const wn_analysis_input input = analysis_input(a);
    analysis_begin(a, "meaningful", "batches");
    code = analysis_end(a, analysis_ended(a, wn_analyze_meaning(a->ctx, a->model, &input, &choice, &report)));
  }
  if (!code) code = meaningful_choose_share(&m, report, &s);
  if (!code)
    code = analysis_deliver(a, meaningful_result_json(a, &s), meaningful_result_csv, meaningful_result_print, &s);
  if (!code) code = meaningful_save_plots(&m, &s);
  free(s.fits), free(ids);
  wn_meaning_report_destroy(report);
  analysis_close(a);
  return code;
}
