/* winnow analyze: what a model attends to. The table at the end has a row for each subcommand. */
#include "analyze.h"
#include "cmd.h"

int cmd_analyze(int argc, char **argv) {
  const struct cli_command commands[] = {
      {"meaningful", "tokens needed for shares of the attention, by context length; fits", analyze_meaningful},
      {"sweep", "perplexity, accuracy and tasks under a threshold; the smallest that keeps enough", analyze_sweep},
      {"attention", "similarity bias, entropy, sinks, distances", analyze_attention},
      {"survival", "which tokens budgets keep, and for how long", analyze_survival},
      {"kept", "which tokens each key-value head keeps of a context that is compressed", analyze_kept},
      {"fits", "curves through the counts of winnow generate --counts", analyze_fits},
      {"selection", "mean F over many sequences, with numbers; how alike two runs select", analyze_selection},
      {"task", "synthetic tasks: which tokens are selected away, and which are still needed", analyze_task},
      {"spans", "adaptive and dynamic spans: by head, operations, memory", analyze_spans},
  };
  return cli_dispatch("winnow analyze", "What a model attends to.", commands, CLI_COUNT(commands), argc, argv);
}
