/* The list of subcommands. Dispatch and help use it (main.c); completion uses the help (winnow.bash). Each gets its own
 * name as argv[0] and returns the exit code: 0 success, 1 failure, 2 usage. */
#ifndef CLI_CMD_H
#define CLI_CMD_H

#define CLI_COMMANDS(COMMAND)                                                                                          \
  COMMAND(tokenizer, "train a tokenizer; encode and decode text")                                                      \
  COMMAND(data, "turn text and JSON lines into token files")                                                           \
  COMMAND(train, "train a model from a recipe, or resume")                                                             \
  COMMAND(sweep, "train a grid over recipe keys, with one report")                                                     \
  COMMAND(adapt, "switch mechanisms on in a pretrained model and fine-tune it")                                        \
  COMMAND(eval, "loss, perplexity and bits per byte on token files, text or tasks")                                    \
  COMMAND(generate, "continue a prompt")                                                                               \
  COMMAND(chat, "talk to a model")                                                                                     \
  COMMAND(serve, "answer HTTP requests in the shapes of the OpenAI API")                                               \
  COMMAND(analyze, "what a model attends to: tokens needed, thresholds, attention, survival, spans")                   \
  COMMAND(prune, "search for cache budgets; compare eviction policies")                                                \
  COMMAND(report, "one page of figures: training, selections and evictions, cost")                                     \
  COMMAND(convert, "write a model in another format")                                                                  \
  COMMAND(info, "describe a checkpoint, or this build and machine")                                                    \
  COMMAND(op, "run one operation on a case file")                                                                      \
  COMMAND(bench, "time operations, training steps and decoding")

#define CLI_COMMAND_PROTOTYPE(name, help) int cmd_##name(int argc, char **argv);
CLI_COMMANDS(CLI_COMMAND_PROTOTYPE)

#endif
