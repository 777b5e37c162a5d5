/* SPDX-License-Identifier: Apache-2.0 */
/*
 * health.h - `kvfs --health`: whether a daemon answers, by its mount and by its
 * socket, and whether its SSD works.
 */
#ifndef KV_FS_HEALTH_H
#define KV_FS_HEALTH_H

#include <stdbool.h>

/* Whether that is what the command line asks for. */
bool kv_health_called(int argc, char **argv);

/* Returns the exit status: 0 well; 1 it does not answer, or the command line is
 * wrong; 3 it answers, and its SSD does not work.  One line says which. */
int kv_health_main(int argc, char **argv);

#endif
