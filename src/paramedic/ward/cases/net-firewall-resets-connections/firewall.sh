# Host firewall of the compute nodes: only listed services may be reached.
iptables -F INPUT
iptables -A INPUT -i lo -j ACCEPT
iptables -A INPUT -p tcp --tcp-flags RST RST -j ACCEPT
iptables -A INPUT -p tcp --dport 22 -j ACCEPT
iptables -A INPUT -p tcp --dport 29500 -j ACCEPT
iptables -A INPUT -p tcp -j REJECT --reject-with tcp-reset
