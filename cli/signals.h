/* The first SIGINT or SIGTERM asks the running call to stop at its next step boundary; a second one kills. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include <stdbool.h>
#include <winnow/context.h>

void cli_signals_bus(void); /* SIGBUS of a mapped file: one line that names it, exit code 1 */
void cli_signals_begin(wn_context *ctx);
void cli_signals_end(void);
/* The same around an answer of a conversation. keeps: SIGINT ends answers but not the program, also between answers:
 * from the first answer on it is caught and asks the context to stop; who begins the next answer withdraws the request.
 * cli_signals_end_answer returns false if only SIGINT came. */
void cli_signals_begin_answer(wn_context *ctx, bool keeps);
bool cli_signals_end_answer(void);

/* From now on SIGHUP asks a server to read its files again, unless it is the terminal that hangs up, which ends it like
 * before. cli_signals_reload returns true once for one or more such requests. */
void cli_signals_begin_reload(void);
bool cli_signals_reload(void);

/* The exit code of a command that was interrupted after saving: 128 + SIGINT, as in shells. */
#define CLI_INTERRUPTED 130

#endif
