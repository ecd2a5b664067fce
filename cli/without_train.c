/* Replaces the commands that train, search, analyse and draw in a build for inference only (WINNOW_TRAIN=OFF). */
#include "bench.h"
#include "cmd.h"
#include "ui.h"

#define WITHOUT(function, command)                                                                                     \
  int function(int argc, char **argv) {                                                                                \
    (void)argc, (void)argv;                                                                                            \
    return cli_error("this build, for inference alone, has no `" command "` (WINNOW_TRAIN=OFF)");                      \
  }
WITHOUT(cmd_train, "winnow train")
WITHOUT(cmd_adapt, "winnow adapt")
WITHOUT(cmd_analyze, "winnow analyze")
WITHOUT(cmd_prune, "winnow prune")
WITHOUT(cmd_report, "winnow report")
WITHOUT(cmd_sweep, "winnow sweep")
WITHOUT(bench_train, "winnow bench train")
