/* winnow train: a recipe into a run folder, or the continuation of one. */
#include "cmd.h"

#include <stdio.h>
#include <string.h>
#include <winnow/train.h>
#include "args.h"
#include "recipe.h"
#include "train_run.h"
#include "ui.h"

int cmd_train(int argc, char **argv) {
  struct cli_common common = CLI_COMMON_DEFAULTS;
  struct cli_views views = CLI_VIEWS_DEFAULTS;
  const char *config = NULL, *out = NULL, *init = NULL;
  struct cli_list sets = {0};
  bool resume = false;
  const struct cli_option options[] = {
      {.name = "config", .type = CLI_STRING, .out = &config, .metavar = "FILE", .help = "the recipe, JSON"},
      {.name = "set", .type = CLI_LIST, .out = &sets, .metavar = "KEY=VALUE", .help = "changes one key of the recipe"},
      {.name = "out", .type = CLI_STRING, .out = &out, .metavar = "DIR", .help = "the run's folder", .required = true},
      {.name = "init",
       .type = CLI_STRING,
       .out = &init,
       .metavar = "DIR",
       .help = "a checkpoint to start from: its parameters, with a fresh optimizer; and, without --config, its recipe"},
      {.name = "resume", .type = CLI_FLAG, .out = &resume, .help = "continue the run in --out where it was saved"},
      CLI_VIEWS_OPTIONS(&views),
      CLI_COMMON_OPTIONS(&common)};
  const struct cli_spec spec = {
      .command = "winnow train",
      .summary =
          "Trains a model. The folder receives config.json, recipe.json, model.safetensors, the tokenizer, the\n"
          "optimizer's state and log.jsonl (one object a step). An interrupt (Ctrl-C, SIGTERM, a closed terminal)\n"
          "saves and stops with exit code 130; --resume goes on from there, bit for bit with as many threads.",
      .options = options,
      .option_count = CLI_COUNT(options),
      .more_help = cli_recipe_keys};
  int code = cli_parse(&spec, argc, argv, NULL);
  if (code != CLI_GO) {
    cli_list_clear(&sets);
    return code;
  }
  if (!config && !sets.count && !resume && !init)
    return cli_usage_error(spec.command, "nothing to train: give --config, --set, --init or --resume");
  if (init && resume) {
    cli_list_clear(&sets);
    return cli_usage_error(spec.command, "--init is for a new run, --resume for one that is there");
  }
  wn_context *ctx = NULL;
  code = init && !cli_exists(init) ? cli_error("cannot open %s: there is no such file or folder", init)
                                   : cli_context_open(&common, &ctx);
  if (code) {
    cli_list_clear(&sets);
    return code;
  }
  wn_recipe recipe;
  const wn_recipe *given = NULL;
  char kept[4096];
  if (config || sets.count || init) {
    /* Resuming with changes alone starts from the recipe that the run keeps, a new run from a checkpoint from its own.
     */
    const char *base = config;
    if (!base && (resume || init)) {
      if (!cli_join(kept, sizeof kept, resume ? out : init, "recipe.json"))
        code = cli_error("%s: the path is too long", resume ? out : init);
      base = resume || cli_exists(kept) ? kept : NULL;
    }
    if (!code) code = cli_recipe_load(ctx, base, &sets, &recipe);
    if (!code && init &&
        snprintf(recipe.train.init, sizeof recipe.train.init, "%s", init) >= (int)sizeof recipe.train.init)
      code = cli_error("%s: the path is too long", init);
    given = &recipe;
  }
  if (!code) code = cli_train_run(&common, ctx, given, out, resume, &views, "train", "trained");
  wn_context_destroy(ctx);
  cli_list_clear(&sets);
  return code;
}
