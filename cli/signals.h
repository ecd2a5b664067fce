/* The first SIGINT or SIGTERM asks the running call to stop at its next step boundary; a second one kills. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include <winnow/context.h>

void cli_signals_bus(void); /* SIGBUS of a mapped file: one line that names it, exit code 1 */
void cli_signals_begin(wn_context *ctx);
void cli_signals_end(void);

/* What a command that was interrupted after saving returns, as shells count: 128 + SIGINT. */
#define CLI_INTERRUPTED 130

#endif
