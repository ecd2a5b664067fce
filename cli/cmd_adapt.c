/* winnow adapt: a pretrained model goes on with mechanisms that it was not trained with. */
#include "cmd.h"

#include <stdio.h>
#include <string.h>
#include <winnow/train.h>
#include "args.h"
#include "recipe.h"
#include "train_run.h"
#include "ui.h"

/* "KEY=VALUE" in front of the sets, so that a --set can still change it. */
struct sets {
  char text[4][1200];
  const char *items[4 + 256];
  int count;
};

static bool put(struct sets *s, const char *key, const char *value) {
  const int n = snprintf(s->text[s->count], sizeof s->text[0], "%s=%s", key, value);
  s->items[s->count] = s->text[s->count];
  s->count++;
  return n > 0 && (size_t)n < sizeof s->text[0];
}

/* A token file, or a folder with train.bin and perhaps val.bin, as `winnow data prepare` makes it. */
static int put_data(struct sets *s, const char *data, const char *val) {
  char path[4096];
  if (data && cli_join(path, sizeof path, data, "train.bin") && cli_exists(path)) {
    if (!put(s, "data.train", path)) return cli_error("%s: the path is too long", path);
    if (!val && cli_join(path, sizeof path, data, "val.bin") && cli_exists(path) && !put(s, "data.val", path))
      return cli_error("%s: the path is too long", path);
  } else if (data && !put(s, "data.train", data)) {
    return cli_error("%s: the path is too long", data);
  }
  if (val && !put(s, "data.val", val)) return cli_error("%s: the path is too long", val);
  return 0;
}

/* The recipe of a new run. */
static int build(wn_context *ctx, const char *model, const char *config, const char *data, const char *val,
                 const struct cli_list *given, wn_recipe *out) {
  struct sets sets = {.count = 0};
  wn_tokenizer *tok = NULL;
  if (given->count > 256) return cli_error("more than 256 --set");
  /* The tokenizer goes along where the model has one. */
  if (wn_tokenizer_load(ctx, model, &tok) == WN_OK && !put(&sets, "data.tokenizer", model))
    return cli_error("%s: the path is too long", model);
  wn_tokenizer_destroy(tok);
  const int code = put_data(&sets, data, val);
  if (code) return code;
  for (int i = 0; i < given->count; i++) sets.items[sets.count++] = given->items[i];
  const wn_status status = wn_adapt_recipe(ctx, model, config, sets.items, sets.count, out);
  return status == WN_OK ? 0 : cli_fail(ctx, status);
}

int cmd_adapt(int argc, char **argv) {
  struct cli_common common = CLI_COMMON_DEFAULTS;
  struct cli_views views = CLI_VIEWS_DEFAULTS;
  const char *model = NULL, *config = NULL, *out = NULL, *data = NULL, *val = NULL;
  struct cli_list sets = {0}, positionals = {0};
  bool resume = false;
  const struct cli_option options[] = {
      {.name = "model", .type = CLI_STRING, .out = &model, .metavar = "DIR", .help = "the pretrained model"},
      {.name = "out", .type = CLI_STRING, .out = &out, .metavar = "DIR", .help = "the run's folder", .required = true},
      {.name = "data",
       .type = CLI_STRING,
       .out = &data,
       .metavar = "FILE|DIR",
       .help = "token file to train on, or a folder with train.bin and val.bin (winnow data prepare)"},
      {.name = "val", .type = CLI_STRING, .out = &val, .metavar = "FILE", .help = "token file for evaluations"},
      {.name = "config",
       .type = CLI_STRING,
       .out = &config,
       .metavar = "FILE",
       .help = "a recipe, JSON: what changes in the model's attention, and how to train"},
      {.name = "set", .type = CLI_LIST, .out = &sets, .metavar = "KEY=VALUE", .help = "changes one key of the recipe"},
      {.name = "resume", .type = CLI_FLAG, .out = &resume, .help = "continue the run in --out where it was saved"},
      CLI_VIEWS_OPTIONS(&views),
      CLI_COMMON_OPTIONS(&common)};
  const struct cli_spec spec = {
      .command = "winnow adapt",
      .summary =
          "Switches mechanisms of the attention on in a pretrained model, from a start that changes nothing, and\n"
          "fine-tunes it. --set model.attention.selective.enabled=true gives selective attention with a strength\n"
          "that is learned from 0; exclusive.enabled a gate from 0; span.enabled spans that begin with all of the\n"
          "context. The logits must be the old model's before the first step. --set train.tune=lora trains\n"
          "low-rank updates of the attention's maps. The folder is that of winnow train.",
      .options = options,
      .option_count = CLI_COUNT(options),
      .positional = "[MODEL]",
      .positional_max = 1,
      .more_help = cli_recipe_keys};
  int code = cli_parse(&spec, argc, argv, &positionals);
  if (code == CLI_GO && (!resume || model || positionals.count))
    code = cli_model_argument(&spec, code, true, &positionals, &model);
  if (code == CLI_GO && resume && (model || config || data || val || sets.count))
    code = cli_usage_error(spec.command, "--resume goes on with the run as it is: give --out alone");
  if (code != CLI_GO) {
    cli_list_clear(&sets);
    return code;
  }
  wn_context *ctx = NULL;
  wn_recipe recipe;
  code = cli_context_open(&common, &ctx);
  if (!code && !resume) code = build(ctx, model, config, data, val, &sets, &recipe);
  if (!code) code = cli_train_run(&common, ctx, resume ? NULL : &recipe, out, resume, &views, "adapt", "adapted");
  wn_context_destroy(ctx);
  cli_list_clear(&sets);
  return code;
}
