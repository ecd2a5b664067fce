/* winnow train: trains by a recipe into a run's folder, or continues a run. */
#include "cmd.h"

#include <stdio.h>
#include <winnow/train.h>
#include "recipe.h"
#include "together.h"
#include "train_run.h"

struct train {
  struct cli_common common;
  struct cli_views views;
  const char *config, *out, *init;
  struct cli_list sets;
  bool resume;
};

static const struct cli_option train_options[] = {
    CLI_OPTION(struct train, config, "config", "FILE", "the recipe, JSON"),
    CLI_OPTION(struct train, sets, "set", "KEY=VALUE", "changes one key of the recipe"),
    CLI_OPTION(struct train, out, "out", "DIR", "the run's folder", .required = true),
    CLI_OPTION(
        struct train, init, "init", "DIR",
        "a checkpoint to start from: its parameters, with a new optimizer state; and, without --config, its recipe"),
    CLI_OPTION(
        struct train, resume, "resume", NULL,
        "continue the run in --out from its last checkpoint, by its own recipe; --set changes that one, --config "
        "replaces it"),
    CLI_VIEWS_OPTIONS(struct train, views),
    CLI_COMMON_OPTIONS(struct train, common)};

static const struct cli_spec train_spec = {
    .command = "winnow train",
    .summary =
        "Trains a model. The folder receives config.json, recipe.json, model.safetensors, the tokenizer, the\n"
        "optimizer's state and log.jsonl (one object per step). An interrupt (Ctrl-C, SIGTERM, a closed terminal)\n"
        "saves and stops with exit code 130; --resume continues from there, bit for bit with the same number of\n"
        "threads.",
    CLI_TABLE(train_options),
    .more_help = cli_recipe_keys};

/* Where the recipe is read from: --config; else with --resume the run's own, with --init the checkpoint's own if it has
 * one. *path NULL: only --set. */
static int train_recipe_path(const struct train *t, char *kept, size_t bytes, const char **path) {
  const char *dir = t->resume ? t->out : t->init;
  *path = t->config;
  if (*path || !dir) return 0;
  if (!cli_join(kept, bytes, dir, "recipe.json")) return cli_error("%s: the path is too long", dir);
  if (t->resume || cli_exists(kept)) *path = kept;
  return 0;
}

static int train_read_recipe(wn_context *ctx, const struct train *t, wn_recipe *recipe) {
  char kept[4096];
  const char *path;
  int code = train_recipe_path(t, kept, sizeof kept, &path);
  if (!code) code = cli_recipe_load(ctx, path, &t->sets, recipe);
  if (code || !t->init) return code;
  const int n = snprintf(recipe->train.init, sizeof recipe->train.init, "%s", t->init);
  return n < (int)sizeof recipe->train.init ? 0 : cli_error("%s: the path is too long", t->init);
}

static int train_check(const struct train *t, int code) {
  if (code != CLI_GO) return code;
  if (!t->config && !t->sets.count && !t->resume && !t->init)
    return cli_usage_error(train_spec.command, "nothing to train: give --config, --set, --init or --resume");
  if (t->init && t->resume)
    return cli_usage_error(train_spec.command, "--init is for a new run, --resume for one that is there");
  return t->init && !cli_exists(t->init) ? cli_error("cannot open %s: there is no such file or folder", t->init)
                                         : CLI_GO;
}

int cmd_train(int argc, char **argv) {
  struct train t = {.common = CLI_COMMON_DEFAULTS, .views = CLI_VIEWS_DEFAULTS};
  wn_context *ctx = NULL;
  wn_recipe recipe;
  int code = train_check(&t, cli_parse(&train_spec, argc, argv, &t, NULL));
  /* A folder that cannot be resumed is refused before its recipe is read. */
  const bool changes = (t.config || t.sets.count || t.init) && !(t.resume && !wn_train_can_resume(t.out));
  if (code == CLI_GO) code = cli_together_open(&t.common, &ctx);
  if (!code && !cli_together_speaks(ctx)) t.views = (struct cli_views)CLI_VIEWS_DEFAULTS;
  if (!code && changes) code = train_read_recipe(ctx, &t, &recipe);
  if (!code)
    code = cli_train_run(&t.common, ctx, changes ? &recipe : NULL, t.out, t.resume, &t.views, "train", "trained");
  cli_together_close(ctx, code);
  cli_list_clear(&t.sets);
  return code;
}
