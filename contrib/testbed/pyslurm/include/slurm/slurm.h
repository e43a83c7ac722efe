/*
 * For building pyslurm 25.11 against Slurm 26.05, in the test bed only.
 * Slurm 26.05 keeps the functions that took a bare job id as _Generic wrappers under this name.
 */
#define SLURM_BACKWARD_COMPAT 1
#include_next <slurm/slurm.h>

/* renamed in 26.05 */
#define slurm_free_ctl_conf slurm_free_conf

/* gone in 26.05; pyslurm only names it in a table of errors */
#ifndef ESLURM_ERROR_ON_DESC_TO_RECORD_COPY
#define ESLURM_ERROR_ON_DESC_TO_RECORD_COPY 2084
#endif
