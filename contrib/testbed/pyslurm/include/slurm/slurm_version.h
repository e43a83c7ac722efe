/*
 * For building pyslurm 25.11 against Slurm 26.05, in the test bed only: pyslurm's setup.py reads the line
 * below as text and wants its own release; the real header comes first.
 */
#include_next <slurm/slurm_version.h>
#undef SLURM_VERSION_NUMBER
#define SLURM_VERSION_NUMBER 0x190b00
