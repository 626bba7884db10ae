"""Launch files of clusters, rendered from conf/cluster, for `ray up`, `kubectl` and `sbatch`."""
