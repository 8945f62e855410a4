def draw_figures(records, folder, suffix): return []
