/* winnow analyze attention: similarity, entropy, sinks and distances; winnow analyze survival: what budgets keep. */
#include "analyze.h"

#include <stdlib.h>
#include <string.h>
#include <winnow/report.h>
#include "attention.h"
#include "budgets.h"

/* ---- attention ---- */

static json_t *look_head_json(const wn_look_head *h) {
  json_t *octaves = json_array();
  int last = 0;
  for (int k = 0; k < WN_LOOK_OCTAVES; k++)
    if (h->octave[k] > 0) last = k;
  for (int k = 0; k <= last; k++) json_array_append_new(octaves, json_real(h->octave[k]));
  return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "value_similarity", h->value_similarity,
                   "self_weight", h->self_weight, "output_similarity", h->output_similarity, "entropy_bits", h->entropy,
                   "effective_keys", h->effective, "first_token", h->first, "first_tokens", h->early, "control_tokens",
                   h->control, "learned_sinks", h->learned, "distance", h->distance, "weight_by_distance", octaves);
}

static json_t *look_json(const struct analysis *a, const wn_look_report *r) {
  json_t *layers = json_array();
  for (int64_t l = 0; l < r->layers; l++) {
    json_t *layer = look_head_json(&r->layer[l]), *heads = json_array();
    for (int64_t h = 0; h < r->heads; h++) json_array_append_new(heads, look_head_json(&r->head[l * r->heads + h]));
    json_object_set_new(layer, "heads", heads);
    json_array_append_new(layers, layer);
  }
  return json_pack("{s:o, s:I, s:I, s:I, s:I, s:o, s:o}", "model", cli_text(a->model_dir), "layers",
                   (json_int_t)r->layers, "heads", (json_int_t)r->heads, "tokens", (json_int_t)r->tokens,
                   "first_tokens", (json_int_t)r->early, "perplexity", cli_number(r->eval.perplexity), "by_layer",
                   layers);
}

static void look_csv(FILE *f, const void *what) {
  const wn_look_report *r = what;
  fprintf(f, "layer,head,value_similarity,self_weight,output_similarity,entropy_bits,effective_keys,first_token,"
             "first_tokens,control_tokens,learned_sinks,distance");
  for (int k = 0; k < WN_LOOK_OCTAVES; k++) fprintf(f, ",distance_%lld", k ? 1ll << (k - 1) : 0ll);
  fputc('\n', f);
  for (int64_t i = 0; i < r->layers * r->heads; i++) {
    const wn_look_head *h = &r->head[i];
    fprintf(f, "%" PRId64 ",%" PRId64 ",%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g", i / r->heads, i % r->heads,
            h->value_similarity, h->self_weight, h->output_similarity, h->entropy, h->effective, h->first, h->early,
            h->control, h->learned, h->distance);
    for (int k = 0; k < WN_LOOK_OCTAVES; k++) fprintf(f, ",%.6g", h->octave[k]);
    fputc('\n', f);
  }
}

static void look_print(const struct analysis *a, const void *what) {
  const wn_look_report *r = what;
  int last = 0;
  for (int64_t l = 0; l < r->layers; l++)
    for (int k = 0; k < WN_LOOK_OCTAVES; k++)
      if (r->layer[l].octave[k] > 0 && k > last) last = k;
  printf("%s: %" PRIu64 " tokens, perplexity %.2f, %" PRId64 " layers of %" PRId64 " heads\n\n", a->model_dir,
         r->tokens, r->eval.perplexity, r->layers, r->heads);
  printf("attention similarity bias, entropy and sinks, means over rows and heads\n"
         "layer  cos(vi,vj)    a_ii  cos(yi,vi)   bits    keys   first  first%-3" PRId64 " control  distance%s\n",
         r->early, r->layer[0].learned > 0 ? "  learned sinks" : "");
  for (int64_t l = 0; l < r->layers; l++) {
    const wn_look_head *h = &r->layer[l];
    printf("%5" PRId64 "%12.3f%8.3f%12.3f%7.2f%8.1f%8.3f%9.3f%8.3f%10.1f", l, h->value_similarity, h->self_weight,
           h->output_similarity, h->entropy, h->effective, h->first, h->early, h->control, h->distance);
    if (r->layer[0].learned > 0) printf("%15.3f", h->learned);
    putchar('\n');
  }
  printf("\nweight by distance, per cent\nlayer");
  for (int k = 0; k <= last; k++) printf("%6lld%s", k ? 1ll << (k - 1) : 0ll, k > 1 ? "+" : " ");
  putchar('\n');
  for (int64_t l = 0; l < r->layers; l++) {
    printf("%5" PRId64, l);
    for (int k = 0; k <= last; k++) printf("%6.1f ", 100 * r->layer[l].octave[k]);
    putchar('\n');
  }
}

struct attention {
  struct analysis analysis;
  const char *control, *svg;
  wn_look_options choice;
};

static const struct cli_option attention_options[] = {
    CLI_OPTION(struct attention, choice.early, "first", "N", "first tokens of a document whose weight is summed",
               .min = 1, .max = 1 << 20),
    CLI_CONTROL_OPTION(struct attention, control),
    CLI_OPTION(struct attention, svg, "svg", "FILE", "a plot: the similarities by layer"),
    ANALYSIS_OPTIONS(struct attention, analysis)};

static const struct cli_spec attention_spec = {
    .command = "winnow analyze attention",
    .summary =
        "What heads attend to: the attention similarity bias, entropy, weight on first and on control tokens, and\n"
        "weight by distance; by layer, and by head in --csv and --json.",
    CLI_TABLE(attention_options),
    CLI_OPTIONAL("[DIR]"),
    .epilog = "Similarities after Zhai, \"Exclusive Self Attention\", section 2. keys: 2 to the power of the entropy."};

int analyze_attention(int argc, char **argv) {
  struct attention s = {.analysis = ANALYSIS_DEFAULTS, .control = "special"};
  struct analysis *a = &s.analysis;
  s.choice = (wn_look_options){.size = sizeof s.choice, .early = 4};
  int32_t *ids = NULL;
  wn_look_report *report = NULL;
  int code = analysis_open(a, &attention_spec, argc, argv, &s);
  if (!code) code = analysis_plot(a, "svg", s.svg);
  if (!code) code = analysis_control(a, s.control, &ids, &s.choice.control_count);
  if (!code) code = analysis_needs_text(a);
  if (!code) {
    const wn_analysis_input input = analysis_input(a);
    s.choice.control = ids;
    analysis_begin(a, "attention", "batches");
    code = analysis_end(a, analysis_ended(a, wn_analyze_look(a->ctx, a->model, &input, &s.choice, &report)));
  }
  if (!code) code = analysis_deliver(a, look_json(a, report), look_csv, look_print, report);
  if (!code && s.svg) code = analysis_end(a, wn_look_save_svg(a->ctx, report, "Attention similarity bias", s.svg));
  free(ids);
  wn_look_report_destroy(report);
  analysis_close(a);
  return code;
}

/* ---- survival ---- */

static json_t *survival_json(const struct analysis *a, const wn_survival_report *r) {
  json_t *policies = json_array();
  for (int i = 0; i < r->count; i++) {
    const wn_survival_policy *p = &r->policy[i];
    json_t *alive = json_array(), *overlap = json_object();
    for (int k = 0; k < WN_SURVIVAL_AGES && p->alive[k] >= 0; k++) json_array_append_new(alive, json_real(p->alive[k]));
    for (int j = 0; j < r->count; j++)
      json_object_set_new(overlap, wn_policy_name(r->policy[j].policy), json_real(r->overlap[i * r->count + j]));
    json_array_append_new(policies, json_pack("{s:s, s:o, s:I, s:f, s:f, s:o, s:o}", "policy",
                                              wn_policy_name(p->policy), "perplexity", cli_number(p->perplexity),
                                              "tokens", (json_int_t)p->tokens, "lifetime", p->lifetime, "evicted",
                                              p->evicted, "alive", alive, "overlap", overlap));
  }
  return json_pack("{s:o, s:o}", "model", cli_text(a->model_dir), "policies", policies);
}

static void survival_csv(FILE *f, const void *what) {
  const wn_survival_report *r = what;
  fprintf(f, "policy,perplexity,tokens,lifetime,evicted");
  for (int k = 0; k < WN_SURVIVAL_AGES; k++) fprintf(f, ",alive_%d", 1 << k);
  for (int j = 0; j < r->count; j++) fprintf(f, ",overlap_%s", wn_policy_name(r->policy[j].policy));
  fputc('\n', f);
  for (int i = 0; i < r->count; i++) {
    const wn_survival_policy *p = &r->policy[i];
    fprintf(f, "%s,%.9g,%" PRIu64 ",%.6g,%.6g", wn_policy_name(p->policy), p->perplexity, p->tokens, p->lifetime,
            p->evicted);
    for (int k = 0; k < WN_SURVIVAL_AGES; k++) p->alive[k] < 0 ? fprintf(f, ",") : fprintf(f, ",%.6g", p->alive[k]);
    for (int j = 0; j < r->count; j++) fprintf(f, ",%.6g", r->overlap[i * r->count + j]);
    fputc('\n', f);
  }
}

static void survival_print(const struct analysis *a, const void *what) {
  const wn_survival_report *r = what;
  int ages = 0;
  while (ages < WN_SURVIVAL_AGES && r->policy[0].alive[ages] >= 0) ages++;
  printf("%s\n\nshare of tokens still held N rows after their own, in documents that long, per cent\npolicy    ",
         a->model_dir);
  for (int k = 0; k < ages; k++) printf("%7d", 1 << k);
  printf("  lifetime  evicted  perplexity\n");
  for (int i = 0; i < r->count; i++) {
    const wn_survival_policy *p = &r->policy[i];
    printf("%-10s", wn_policy_name(p->policy));
    for (int k = 0; k < ages; k++) printf("%7.1f", 100 * p->alive[k]);
    printf("%10.1f%8.1f%%%12.2f\n", p->lifetime, 100 * p->evicted, p->perplexity);
  }
  printf("\nof the tokens that a policy holds at the end of a sequence, the share that another holds too, per cent\n   "
         "       ");
  for (int j = 0; j < r->count; j++) printf("%10s", wn_policy_name(r->policy[j].policy));
  putchar('\n');
  for (int i = 0; i < r->count; i++) {
    printf("%-10s", wn_policy_name(r->policy[i].policy));
    for (int j = 0; j < r->count; j++) printf("%10.1f", 100 * r->overlap[i * r->count + j]);
    putchar('\n');
  }
}

/* Reads policies: names, or "all" for those that suit the model and the budgets. */
static int survival_read_policies(const struct analysis *a, const char *text, const char *spec,
                                  const struct cli_policy_choices *choices, wn_budgets *budgets, int *count) {
  const wn_model_config *config = wn_model_config_get(a->model);
  wn_policy list[WN_POLICY_MAX];
  int n = 0;
  const bool all = !strcmp(text, "all");
  *count = 0;
  const int code = all ? CLI_GO : cli_policies_read(a->command, text, "all, or ", list, &n);
  if (code != CLI_GO) return code;
  for (int p = 0; all && p < wn_policy_count(); p++)
    if (wn_policy_suits(p, &config->attention)) list[n++] = p;
  for (int i = 0; i < n; i++) {
    wn_budgets *b = &budgets[(*count)++];
    wn_budgets_init(b, NULL);
    if (cli_policy_choices_apply(a->command, choices, b)) return 2;
    b->policy = list[i];
    b->cache = wn_cache_format_resolve(a->ctx, a->model, b, WN_CACHE_AUTO); /* budgets in bytes depend on it */
    if (wn_budgets_parse(a->ctx, config, spec, b) != WN_OK)
      return cli_error("--budgets %s: %s", spec, wn_context_error(a->ctx));
    if (cli_policy_choices_over(a->command, choices, b)) return 2; /* a file may have its own options */
    if (wn_budgets_move(a->ctx, config, list[i], b) == WN_OK) continue;
    if (!all) return cli_error("--budgets %s: %s", spec, wn_context_error(a->ctx));
    cli_note(&a->common, "%s is left out: %s", wn_policy_name(list[i]), wn_context_error(a->ctx));
    wn_budgets_clear(b);
    --*count;
  }
  return *count > 0 ? 0 : cli_error("--budgets %s: %s", spec, wn_context_error(a->ctx));
}

struct survival {
  struct analysis analysis;
  const char *spec_text, *policies, *svg;
  struct cli_policy_choices choices;
};

static const struct cli_option survival_options[] = {
    CLI_OPTION(struct survival, spec_text, "budgets", "SPEC",
               "tokens that a layer holds: 64; 64,32,...; 0.25 of the context; 2MiB in all", .required = true),
    CLI_OPTION(struct survival, policies, "policies", "NAMES", cli_policies_help),
    CLI_POLICY_CHOICES_OPTIONS(struct survival, choices),
    CLI_OPTION(struct survival, svg, "svg", "FILE", "a plot: tokens held against age"),
    ANALYSIS_OPTIONS(struct survival, analysis)};

static const struct cli_spec survival_spec = {
    .command = "winnow analyze survival",
    .summary =
        "Which tokens a cache under a budget holds and for how long, policy by policy, and how far policies agree.",
    CLI_TABLE(survival_options),
    CLI_OPTIONAL("[DIR]"),
    .epilog = "A token's lifetime is the number of rows that see it, from its own until it is evicted or its document\n"
              "ends."};

int analyze_survival(int argc, char **argv) {
  struct survival s = {.analysis = ANALYSIS_DEFAULTS, .policies = "all", .choices = CLI_POLICY_CHOICES_DEFAULTS};
  struct analysis *a = &s.analysis;
  wn_budgets budgets[WN_POLICY_MAX] = {0};
  const wn_budgets *list[WN_POLICY_MAX];
  wn_survival_report *report = NULL;
  int count = 0;
  int code = analysis_open(a, &survival_spec, argc, argv, &s);
  if (!code) code = analysis_plot(a, "svg", s.svg);
  if (!code) code = analysis_needs_text(a);
  if (!code) code = analysis_special(a);
  if (!code) code = survival_read_policies(a, s.policies, s.spec_text, &s.choices, budgets, &count);
  if (!code) {
    const wn_analysis_input input = analysis_input(a);
    for (int i = 0; i < count; i++) list[i] = &budgets[i];
    analysis_begin(a, "survival", "batches");
    code = analysis_end(a, analysis_ended(a, wn_analyze_survival(a->ctx, a->model, &input, list, count, &report)));
  }
  if (!code) code = analysis_deliver(a, survival_json(a, report), survival_csv, survival_print, report);
  if (!code && s.svg) code = analysis_end(a, wn_survival_save_svg(a->ctx, report, "Tokens held under a budget", s.svg));
  wn_survival_report_destroy(report);
  for (int i = 0; i < WN_POLICY_MAX; i++) wn_budgets_clear(&budgets[i]);
  analysis_close(a);
  return code;
}
