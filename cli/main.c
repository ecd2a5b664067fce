/* The command line: a table of subcommands over the public API in include/winnow. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <winnow/context.h>
#include "args.h"
#include "budgets.h"
#include "cmd.h"
#include "ui.h"

/* Rows may stand here before their files do. */
#pragma weak cmd_tokenizer
#pragma weak cmd_data
#pragma weak cmd_train
#pragma weak cmd_adapt
#pragma weak cmd_eval
#pragma weak cmd_generate
#pragma weak cmd_chat
#pragma weak cmd_analyze
#pragma weak cmd_report
#pragma weak cmd_convert
#pragma weak cmd_info
#pragma weak cmd_prune
#pragma weak cmd_op
#pragma weak cmd_bench

static int version(void) {
  wn_context *ctx = NULL;
  wn_build_info info = {0};
  wn_status status = wn_context_create(NULL, &ctx);
  if (status == WN_OK) status = wn_build_info_get(ctx, &info);
  if (status == WN_OK) printf("winnow %s (%s)\n", info.version, info.commit);
  const int code = status == WN_OK ? 0 : cli_fail(ctx, status);
  wn_context_destroy(ctx);
  return code;
}

int main(int argc, char **argv) {
  const struct cli_command commands[] = {
      {"tokenizer", "train a tokenizer; encode and decode text", cmd_tokenizer},
      {"data", "turn text and JSON lines into token files", cmd_data},
      {"train", "train a model from a recipe, or resume", cmd_train},
      {"adapt", "switch mechanisms on in a pretrained model and fine-tune it", cmd_adapt},
      {"eval", "loss, perplexity and bits per byte on token files, text or tasks", cmd_eval},
      {"generate", "continue a prompt", cmd_generate},
      {"chat", "talk to a model", cmd_chat},
      {"analyze", "what a model attends to: tokens needed, thresholds, attention, survival, spans", cmd_analyze},
      {"prune", "search for cache budgets; compare eviction policies", cmd_prune},
      {"report", "one page of figures: training, selections and evictions, cost", cmd_report},
      {"convert", "write a model in another format", cmd_convert},
      {"info", "describe a checkpoint, or this build and machine", cmd_info},
      {"op", "run one operation on a case file", cmd_op},
      {"bench", "time operations, training steps and decoding", cmd_bench},
  };
  cli_policies_init();
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_IGN); /* a file larger than the limit is a write that fails, with a message */
  int code;
  if (argc > 1 && (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V") || !strcmp(argv[1], "version")))
    code = version();
  else
    code = cli_dispatch("winnow",
                        "Trains, evaluates and runs transformer language models that keep only the context they need.\n"
                        "winnow --version prints the version.",
                        commands, CLI_COUNT(commands), argc, argv);
  if (code == CLI_SHOWN) code = 0;
  errno = 0;
  if (fflush(stdout) || ferror(stdout)) {
    /* A write that failed earlier has left the mark, but not its errno. */
    int error = errno;
    if (code == 0) code = cli_error("standard output: %s", error ? strerror(error) : "it could not be written");
  }
  return code;
}
