/* Commands that several processes run as one (winnow/dist.h). */
#ifndef CLI_TOGETHER_H
#define CLI_TOGETHER_H

#include "ui.h"

/* cli_context_open, and the context joins the processes that this one was started with. All but the first are silent
 * from then on, and signals are the first one's business. */
int cli_together_open(const struct cli_common *common, wn_context **out);
/* Leaves them and destroys the context; code: the command's. */
void cli_together_close(wn_context *ctx, int code);
bool cli_together_speaks(const wn_context *ctx); /* the first process, or the only one */

#endif
