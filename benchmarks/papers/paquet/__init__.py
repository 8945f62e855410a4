"""Paquet and Fraccaro (2016), figure 1: trajectories of HMC and RMHMC on a mixture of three normal densities."""
