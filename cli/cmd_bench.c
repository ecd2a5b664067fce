/* winnow bench: times operations, training steps and decoding. Each number is the median of repeats after a warm-up,
 * printed with its spread; --json adds machine, build, command line and every sample. */
#include "bench.h"
#include "cmd.h"

int cmd_bench(int argc, char **argv) {
  static const struct cli_command commands[] = {
      {"op", "one operation, forward and backward", bench_op},
      {"train", "training steps of a recipe", bench_train},
      {"decode", "decoding at several context lengths", bench_decode},
  };
  return cli_dispatch("winnow bench", "Medians of repeated runs, with their spread.", commands, CLI_COUNT(commands),
                      argc, argv);
}
