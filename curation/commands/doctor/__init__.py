"""``curate doctor``: checks machine, packages, configuration, storage and cluster; says how to fix each problem."""
