/* winnow prune: searches for budgets; compares policies. */
#include "cmd.h"
#include "prune.h"

int cmd_prune(int argc, char **argv) {
  static const struct cli_command commands[] = {
      {"search", "budgets for every layer, found greedily", prune_search},
      {"compare", "all eviction policies at the same budgets", prune_compare}};
  return cli_dispatch("winnow prune", "Context pruning: how many tokens each layer needs, and which are evicted first.",
                      commands, CLI_COUNT(commands), argc, argv);
}
