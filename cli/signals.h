/* The first SIGINT or SIGTERM asks the running call to stop at its next step boundary; a second one kills. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include <stdbool.h>
#include <winnow/context.h>

void cli_signals_bus(void); /* SIGBUS of a mapped file: one line that names it, exit code 1 */
void cli_signals_begin(wn_context *ctx);
void cli_signals_end(void);
/* The same around an answer of a conversation. keeps: SIGINT ends answers and not the program, also between them: it is
 * caught from the first one on and asks the context to stop, whoever begins one takes that back. False from
 * cli_signals_end_answer: nothing but SIGINT came. */
void cli_signals_begin_answer(wn_context *ctx, bool keeps);
bool cli_signals_end_answer(void);

/* What a command that was interrupted after saving returns, as shells count: 128 + SIGINT. */
#define CLI_INTERRUPTED 130

#endif
