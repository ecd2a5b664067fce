/* winnow adapt: continues the training of a pretrained model with mechanisms that it was not trained with. */
#include "cmd.h"

#include <stdio.h>
#include <winnow/train.h>
#include "recipe.h"
#include "train_run.h"

/* "KEY=VALUE" settings that come before those of --set, so that --set can change them. */
struct sets {
  char text[4][1200];
  const char *items[4 + 256];
  int count;
};

static bool adapt_put(struct sets *s, const char *key, const char *value) {
  const int n = snprintf(s->text[s->count], sizeof s->text[0], "%s=%s", key, value);
  s->items[s->count] = s->text[s->count];
  s->count++;
  return n > 0 && (size_t)n < sizeof s->text[0];
}

/* A token file, or a folder with train.bin and perhaps val.bin, as `winnow data prepare` makes it. */
static int adapt_put_data(struct sets *s, const char *data, const char *val) {
  char path[4096];
  if (data && cli_join(path, sizeof path, data, "train.bin") && cli_exists(path)) {
    if (!adapt_put(s, "data.train", path)) return cli_error("%s: the path is too long", path);
    if (!val && cli_join(path, sizeof path, data, "val.bin") && cli_exists(path) && !adapt_put(s, "data.val", path))
      return cli_error("%s: the path is too long", path);
  } else if (data && !adapt_put(s, "data.train", data)) {
    return cli_error("%s: the path is too long", data);
  }
  if (val && !adapt_put(s, "data.val", val)) return cli_error("%s: the path is too long", val);
  return 0;
}

struct adapt {
  struct cli_common common;
  struct cli_views views;
  const char *model, *config, *out, *data, *val;
  struct cli_list sets;
  bool resume;
};

/* The recipe of a new run. */
static int adapt_recipe(wn_context *ctx, const struct adapt *a, wn_recipe *out) {
  struct sets sets = {.count = 0};
  wn_tokenizer *tok = NULL;
  if (a->sets.count > 256) return cli_error("more than 256 --set");
  /* The new model gets the tokenizer, if the model has one. */
  if (wn_tokenizer_load(ctx, a->model, &tok) == WN_OK && !adapt_put(&sets, "data.tokenizer", a->model))
    return cli_error("%s: the path is too long", a->model);
  wn_tokenizer_destroy(tok);
  const int code = adapt_put_data(&sets, a->data, a->val);
  if (code) return code;
  for (int i = 0; i < a->sets.count; i++) sets.items[sets.count++] = a->sets.items[i];
  const wn_status status = wn_adapt_recipe(ctx, a->model, a->config, sets.items, sets.count, out);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}

static const struct cli_option adapt_options[] = {
    CLI_OPTION(struct adapt, model, "model", "DIR", "the pretrained model"),
    CLI_OPTION(struct adapt, out, "out", "DIR", "the run's folder", .required = true),
    CLI_OPTION(struct adapt, data, "data", "FILE|DIR",
               "token file to train on, or a folder with train.bin and val.bin (winnow data prepare)"),
    CLI_OPTION(struct adapt, val, "val", "FILE", "token file for evaluations"),
    CLI_OPTION(struct adapt, config, "config", "FILE",
               "a recipe, JSON: changes of the model's attention, and how to train"),
    CLI_OPTION(struct adapt, sets, "set", "KEY=VALUE", "changes one key of the recipe"),
    CLI_OPTION(struct adapt, resume, "resume", NULL, "continue the run in --out from its last checkpoint"),
    CLI_VIEWS_OPTIONS(struct adapt, views),
    CLI_COMMON_OPTIONS(struct adapt, common)};

static const struct cli_spec adapt_spec = {
    .command = "winnow adapt",
    .summary = "Switches attention mechanisms on in a pretrained model, from a start that changes no output, and\n"
               "fine-tunes it. --set model.attention.selective.enabled=true gives selective attention with a strength\n"
               "learned from 0; exclusive.enabled a gate learned from 0; span.enabled spans that begin with the whole\n"
               "context. Before the first step the logits must equal the old model's. --set train.tune=lora trains\n"
               "low-rank updates of the attention's projections. The folder is that of winnow train.",
    CLI_TABLE(adapt_options),
    CLI_OPTIONAL("[MODEL]"),
    .more_help = cli_recipe_keys};

int cmd_adapt(int argc, char **argv) {
  struct adapt a = {.common = CLI_COMMON_DEFAULTS, .views = CLI_VIEWS_DEFAULTS};
  wn_context *ctx = NULL;
  wn_recipe recipe;
  int code = cli_parse_model(&adapt_spec, argc, argv, &a, false, &a.model);
  if (code == CLI_GO && !a.resume && !a.model) code = cli_model_missing(&adapt_spec);
  if (code == CLI_GO && a.resume && (a.model || a.config || a.data || a.val || a.sets.count))
    code = cli_usage_error(adapt_spec.command, "--resume continues the run unchanged: give --out only");
  if (code == CLI_GO) code = cli_context_open(&a.common, &ctx);
  if (!code && !a.resume) code = adapt_recipe(ctx, &a, &recipe);
  if (!code)
    code = cli_train_run(&a.common, ctx, a.resume ? NULL : &recipe, a.out, a.resume, &a.views, "adapt", "adapted");
  wn_context_destroy(ctx);
  cli_list_clear(&a.sets);
  return code;
}
