/* winnow report: the budgets in force by layer and key-value head, and what each policy holds under them, as winnow
 * analyze survival measures it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <winnow/analyze.h>
#include "report.h"

static bool all_policies(const struct report *r) {
  return !strcmp(r->policies, "all");
}

int report_policies_check(const char *command, struct report *r) {
  if (r->policies && !r->budgets.spec) return cli_usage_error(command, "--policies needs --budgets");
  if (!r->policies) r->policies = "all";
  for (int p = 0; p < WN_POLICY_COUNT; p++) r->survives[p] = all_policies(r);
  if (all_policies(r) || !strcmp(r->policies, "none")) return CLI_GO;
  wn_policy list[WN_POLICY_COUNT];
  const char *bad;
  int count, bytes;
  switch (cli_policy_list(r->policies, list, &count, &bad, &bytes)) {
  case CLI_POLICIES_UNKNOWN:
    return cli_usage_error(command, "--policies \"%s\": expected all, none, or names of " CLI_POLICIES " with commas",
                           r->policies);
  case CLI_POLICIES_TWICE:
    return cli_usage_error(command, "--policies \"%s\": %.*s stands there twice", r->policies, bytes, bad);
  default:
    for (int i = 0; i < count; i++) r->survives[list[i]] = true;
    return CLI_GO;
  }
}

/* The budgets under another policy; its own choices are as given. False: they do not go with it. */
static bool budgets_under(struct report *r, const struct report_input *in, wn_policy policy, wn_budgets *out) {
  *out = in->budgets; /* tokens stay the input's */
  out->policy = policy;
  const wn_model_config *c = wn_model_config_get(in->loaded);
  out->cache_positions = in->budgets.cache_positions && policy == WN_POLICY_STREAMING;
  if (wn_budgets_check(r->ctx, out, c) == WN_OK) return true;
  /* Heads with budgets of their own evict for themselves. Else it is a policy without that choice: the same tokens in
   * every head anyway. */
  out->per_kv_head = out->heads > 0;
  return wn_budgets_check(r->ctx, out, c) == WN_OK;
}

/* "24 tokens in every layer", "8 to 96 tokens by layer", "16 to 64 tokens by key-value head". */
static void tell_budgets(const wn_budgets *b, char *out, size_t bytes) {
  const int64_t n = b->heads > 0 ? b->layers * b->heads : b->layers;
  const int64_t *tokens = b->heads > 0 ? b->head_tokens : b->tokens;
  int64_t least = tokens[0], most = tokens[0];
  for (int64_t i = 1; i < n; i++) {
    if (tokens[i] < least) least = tokens[i];
    if (tokens[i] > most) most = tokens[i];
  }
  if (least == most)
    snprintf(out, bytes, "%lld tokens in every layer", (long long)least);
  else
    snprintf(out, bytes, "%lld to %lld tokens by %s", (long long)least, (long long)most,
             b->heads > 0 ? "key-value head" : "layer");
}

/* What differs among layers or heads is drawn; one number is not. */
static wn_status draw_budgets(struct report *r, const struct report_input *in, struct report_lines *l, int number) {
  const wn_budgets *b = &in->budgets;
  bool equal = true, ok = true;
  for (int64_t i = 0; i < b->layers; i++) {
    equal &= b->tokens[i] == b->tokens[0];
    for (int64_t h = 0; h < b->heads; h++) equal &= wn_budgets_of(b, i, h) == b->tokens[0];
  }
  if (equal) return WN_OK;
  if (b->heads > 0) {
    const int64_t n = b->layers * b->heads;
    double *m = report_line(l, n, 0, 0, "key-value heads");
    double *mean = m ? report_line(l, b->layers, 1, 0, "mean of the layer") : NULL;
    ok = mean != NULL;
    if (ok) l->series[0].points = true;
    for (int64_t i = 0; ok && i < n; i++) {
      const int64_t layer = i / b->heads;
      if (i % b->heads == 0) {
        mean[layer] = (double)layer;
        mean[b->layers + layer] = NAN;
        mean[3 * b->layers + layer] = 0;
      }
      m[i] = (double)layer;
      m[n + i] = (double)(i % b->heads);
      m[3 * n + i] = (double)b->head_tokens[i];
      mean[3 * b->layers + layer] += (double)b->head_tokens[i] / (double)b->heads;
    }
  } else {
    double *m = report_line(l, b->layers, 0, 0, "layers");
    ok = m != NULL;
    for (int64_t i = 0; ok && i < b->layers; i++) {
      m[i] = (double)i;
      m[3 * b->layers + i] = (double)b->tokens[i];
    }
  }
  char id[64], title[400], about[400], what[100];
  tell_budgets(b, what, sizeof what);
  snprintf(id, sizeof id, "in-force-%d", number);
  snprintf(title, sizeof title, "Budgets in force: %.250s", in->name);
  snprintf(about, sizeof about, "Tokens that %s may hold while the text is read, policy %s: %s, %.4g on average.",
           b->heads > 0 ? "each key-value head" : "each layer", wn_policy_name(b->policy), what,
           (double)wn_budgets_total(b) / (double)b->layers);
  const wn_figure f = {.id = id,
                       .title = title,
                       .about = about,
                       .command = r->command,
                       .axes = b->heads > 0 ? 2 : 1,
                       .x = {{"layer", false}, {"head", false}},
                       .y = {"tokens", false},
                       .bars = b->heads == 0,
                       .series = l->series,
                       .series_count = l->count};
  const wn_status status = ok ? wn_page_add_figure(r->page, &f) : WN_ERR_MEMORY;
  report_lines_clear(l);
  return status;
}

/* What each policy comes to: a row each. */
static wn_status draw_policies(struct report *r, const wn_survival_report *s, const char *name, const char *what,
                               int number) {
  enum { COLUMNS = 4 };
  static const char *const head[COLUMNS] = {"policy", "perplexity", "lifetime, rows", "evicted, %"};
  char text[WN_POLICY_COUNT][COLUMNS][32], id[64], title[400], about[400];
  const char *cells[WN_POLICY_COUNT * COLUMNS];
  for (int i = 0; i < s->count; i++) {
    const wn_survival_policy *p = &s->policy[i];
    snprintf(text[i][1], sizeof text[i][1], "%.6g", p->perplexity);
    snprintf(text[i][2], sizeof text[i][2], "%.4g", p->lifetime);
    snprintf(text[i][3], sizeof text[i][3], "%.1f", 100 * p->evicted);
    cells[i * COLUMNS] = wn_policy_name(p->policy);
    for (int c = 1; c < COLUMNS; c++) cells[i * COLUMNS + c] = text[i][c];
  }
  snprintf(id, sizeof id, "policies-%d", number);
  snprintf(title, sizeof title, "Policies under these budgets: %.250s", name);
  snprintf(
      about, sizeof about,
      "Under budgets of %s: perplexity of the same tokens; how many rows see a token, its own first, mean; the share "
      "of tokens that go before the end.",
      what);
  const wn_figure f = {.id = id, .title = title, .about = about, .command = r->command};
  return wn_page_add_table(r->page, &f, head, COLUMNS, cells, s->count);
}

/* Of what a policy (row) holds at the end, the share that another (column) holds too. */
static wn_status draw_agreement(struct report *r, const wn_survival_report *s, const char *name, const char *what,
                                int number) {
  enum { COLUMNS = 1 + WN_POLICY_COUNT };
  char text[WN_POLICY_COUNT][WN_POLICY_COUNT][16], id[64], title[400], about[400];
  const char *cells[WN_POLICY_COUNT * COLUMNS], *head[COLUMNS] = {"%"};
  const int columns = 1 + s->count;
  for (int i = 0; i < s->count; i++) {
    head[1 + i] = cells[i * columns] = wn_policy_name(s->policy[i].policy);
    for (int j = 0; j < s->count; j++) {
      snprintf(text[i][j], sizeof text[i][j], "%.1f", 100 * s->overlap[i * s->count + j]);
      cells[i * columns + 1 + j] = text[i][j];
    }
  }
  snprintf(id, sizeof id, "agreement-%d", number);
  snprintf(title, sizeof title, "What policies agree on: %.250s", name);
  snprintf(about, sizeof about,
           "Under budgets of %s: of the tokens that the row's policy holds at the end of a sequence, the share in per "
           "cent that the column's policy holds too.",
           what);
  const wn_figure f = {.id = id, .title = title, .about = about, .command = r->command};
  return wn_page_add_table(r->page, &f, head, columns, cells, s->count);
}

static wn_status draw_survival(struct report *r, const struct report_input *in, const wn_survival_report *s,
                               const char *from, const char *left_out, struct report_lines *l, int number) {
  char id[64], title[400], about[700], what[100];
  bool ok = true;
  for (int i = 0; ok && i < s->count; i++) {
    const wn_survival_policy *p = &s->policy[i];
    int64_t n = 0;
    while (n < WN_SURVIVAL_AGES && p->alive[n] >= 0) n++;
    double *m = report_line(l, n, (int)p->policy, 0, wn_policy_name(p->policy));
    ok = m != NULL;
    for (int64_t k = 0; ok && k < n; k++) {
      m[k] = ldexp(1, (int)k);
      m[3 * n + k] = p->alive[k];
    }
  }
  const wn_model_config *c = wn_model_config_get(in->loaded);
  tell_budgets(&in->budgets, what, sizeof what);
  snprintf(id, sizeof id, "survival-%d", number);
  snprintf(title, sizeof title, "Survival of tokens under each policy: %.250s", in->name);
  snprintf(
      about, sizeof about,
      "The share of tokens still held 1, 2, 4, ... rows after their own under budgets of %s, of those whose text is "
      "that long; %llu tokens of %s, in every layer and key-value head.%s%s%s",
      what, (unsigned long long)(s->policy[0].tokens / (uint64_t)(c->layers * c->kv_heads)), from,
      *left_out ? " Not there, for these budgets do not go with them: " : "", left_out, *left_out ? "." : "");
  const wn_figure f = {.id = id,
                       .title = title,
                       .about = about,
                       .command = r->command,
                       .axes = 1,
                       .x = {{"rows after the token's own", true}},
                       .y = {"share still held", false},
                       .series = l->series,
                       .series_count = l->count};
  wn_status status = ok ? wn_page_add_figure(r->page, &f) : WN_ERR_MEMORY;
  report_lines_clear(l);
  if (status == WN_OK) status = draw_policies(r, s, in->name, what, number);
  if (status == WN_OK && s->count > 1) status = draw_agreement(r, s, in->name, what, number);
  return status;
}

static int add_survival(struct report *r, const struct report_input *in, struct report_lines *l, int number) {
  wn_budgets budgets[WN_POLICY_COUNT];
  const wn_budgets *list[WN_POLICY_COUNT];
  char left_out[200] = "";
  int count = 0;
  for (int p = 0; p < WN_POLICY_COUNT; p++) {
    const char *name = wn_policy_name((wn_policy)p);
    if (!r->survives[p]) continue;
    if (budgets_under(r, in, (wn_policy)p, &budgets[count])) {
      list[count] = &budgets[count];
      count++;
      continue;
    }
    if (p == WN_POLICY_SELECTIVE && !wn_model_config_get(in->loaded)->attention.selective.enabled && all_policies(r))
      continue;
    if (!all_policies(r)) return cli_error("%s: --policies %s: %s", in->path, r->policies, wn_context_error(r->ctx));
    const size_t n = strlen(left_out);
    snprintf(left_out + n, sizeof left_out - n, "%s%s", n ? ", " : "", name);
  }
  if (count == 0) return 0;
  wn_eval_options options;
  wn_data_source *source;
  wn_analysis_input input;
  wn_survival_report *s = NULL;
  const int code = report_measured_on(r, in, &options, &source, &input);
  if (code || (!input.source && !input.tok)) return code;
  wn_status status = wn_analyze_survival(r->ctx, in->loaded, &input, list, count, &s);
  wn_data_source_destroy(source);
  if (status == WN_ERR_UNSUPPORTED) {
    cli_note(&r->common, "%s: %s: no figure of survival", in->path, wn_context_error(r->ctx));
    return 0;
  }
  if (status == WN_OK) status = draw_survival(r, in, s, input.source ? "the data" : "the text", left_out, l, number);
  wn_survival_report_destroy(s);
  return status == WN_OK ? 0 : cli_fail(r->ctx, status);
}

int report_budgets(struct report *r) {
  int code = 0, models = 0;
  struct report_lines *lines = calloc(1, sizeof *lines);
  if (!lines) return cli_error("out of memory");
  for (int i = 0; !code && i < r->input_count; i++) {
    const struct report_input *in = &r->inputs[i];
    if (!in->has_budgets) continue;
    wn_status status = models == 0 ? wn_page_add_section(r->page, "What budgets keep") : WN_OK;
    if (status == WN_OK) status = draw_budgets(r, in, lines, models);
    code = status == WN_OK ? add_survival(r, in, lines, models) : cli_fail(r->ctx, status);
    models++;
  }
  free(lines);
  return code;
}
